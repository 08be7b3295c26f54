// Tokens that chose other experts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

// "; there the golden's least chosen score is 0.012 above the next, and at most 0.3 at all of
// them".
std::string margins_text(const Rows& wrong, int64_t token) {
  std::string text;
  double first = -1, greatest = 0;
  for (const ResultRow* row : wrong) {
    for (const Evidence& evidence : row->evidence) {
      const auto* found = std::get_if<RouteMargins>(&evidence);
      if (found == nullptr) continue;
      if (found->token == token) first = found->first;
      greatest = std::max(greatest, found->greatest);
    }
  }
  if (first < 0) return "";
  return fmt::format(
      ", where the golden's least chosen score is {:.2g} above the greatest that it left out; at "
      "most {:.2g} where tokens chose otherwise",
      first, greatest);
}

}  // namespace

std::optional<Proposal> propose_token_order(const Assembled& tensor, const Mesh& /*mesh*/) {
  if (!is_route_ids(tensor.name) || tensor.shape.size() != 3) return std::nullopt;
  const int64_t samples = tensor.shape[0], positions = tensor.shape[1], chosen = tensor.shape[2];
  if (samples < 2 || positions < 2) return std::nullopt;
  const double choices = std::log(2.0);
  for (const bool by_position : {true, false}) {
    Fit fit(tensor);
    for (int64_t token = 0; token < samples * positions; ++token) {
      const int64_t source = by_position ? token % samples * positions + token / samples
                                         : token % positions * samples + token / positions;
      for (int64_t k = 0; k < chosen; ++k) {
        if (!fit.add(token * chosen + k, source * chosen + k)) break;
      }
    }
    if (!fit.explains_tensor(choices)) continue;
    const char* written = by_position ? "position by position" : "sample by sample";
    const char* read = by_position ? "sample by sample" : "position by position";
    return Proposal{
        .pattern = fmt::format("each token has the choice of another: it is found where tokens are "
                               "counted {}, at the number that the token has {}",
                               written, read),
        .likely = fmt::format("a record of routes that was written {} is read {}", written, read),
        .description = choices,
        .parameters = {by_position ? 1.0 : 0.0}}
        .explaining(fit.sums(), tensor.wrong);
  }
  return std::nullopt;
}

std::optional<Proposal> propose_routes(const Difference& difference) {
  if (difference.symptoms.rows.empty() || !difference.first_copies) return std::nullopt;
  const Assembled& tensor = *difference.first_copies;
  if (!is_route_ids(tensor.name) || !tensor.token_dims || tensor.shape.size() != 3) {
    return std::nullopt;
  }
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
                        token % positions, fmt::join(actual, ", "), fmt::join(golden, ", ")) +
            margins_text(difference.wrong, token);
  }
  if (wrong == 0) return std::nullopt;
  return Proposal{.pattern =
                      fmt::format("{} of {} tokens chose other experts: {}", wrong, tokens, first)};
}

}  // namespace shardproof::sim::judge
