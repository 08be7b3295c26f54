// Tokens that chose other experts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

bool is_selection(const Symptoms& symptoms) {
  return !symptoms.rows.empty() && symptoms.rows.front()->name.ends_with(".gate.ids.output");
}

}  // namespace

std::optional<Proposal> propose_routes(const Difference& difference) {
  if (!is_selection(difference.symptoms) || !difference.first_copies) return std::nullopt;
  const Assembled& tensor = *difference.first_copies;
  if (!tensor.token_dims || tensor.shape.size() != 3) return std::nullopt;
  const int64_t positions = tensor.shape[1];
  const auto chosen = static_cast<size_t>(tensor.shape[2]);
  int64_t tokens = 0, wrong = 0;
  std::string first;
  for (size_t e = 0; e + chosen <= tensor.actual.size(); e += chosen) {
    if (!tensor.known[e]) continue;
    ++tokens;
    const auto ids_of = [&](const std::vector<double>& values) {
      const auto begin = values.begin() + static_cast<int64_t>(e);
      return std::vector<int64_t>(begin, begin + static_cast<int64_t>(chosen));
    };
    const std::vector<int64_t> actual = ids_of(tensor.actual), golden = ids_of(tensor.golden);
    if (actual == golden) continue;
    if (++wrong > 1) continue;
    const auto token = static_cast<int64_t>(e / chosen);
    const int64_t row = token / positions;
    first = fmt::format("sample {}, position {} chose {} in place of {}",
                        tensor.drawn.empty() ? row : tensor.drawn[static_cast<size_t>(row)],
                        token % positions, fmt::join(actual, ", "), fmt::join(golden, ", "));
  }
  if (wrong == 0) return std::nullopt;
  return Proposal{.pattern =
                      fmt::format("{} of {} tokens chose other experts: {}", wrong, tokens, first)};
}

}  // namespace shardproof::sim::judge
