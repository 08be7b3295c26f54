// What a rank found beside the golden of a layer with experts: other sums of results, and other
// computations of the golden's numbers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kFewestTokens = 2;  // of one row, to tell shares of routes from any numbers

// `token` is of the samples that were drawn.
std::string token_text(const ResultRow& row, const std::vector<int64_t>& drawn, int64_t token) {
  const int64_t positions = row.global_shape.at(1), sample = token / positions;
  return fmt::format("sample {}, position {}",
                     drawn.empty() ? sample : drawn.at(static_cast<size_t>(sample)),
                     token % positions);
}

// ": sample 0, position 2 has expert 3's result for sample 1, position 0 in place of expert 1's".
std::string example_text(const ResultRow& row, const std::vector<int64_t>& drawn,
                         const std::vector<int64_t>& first) {
  if (first.size() != 4) return "";
  const std::string token = token_text(row, drawn, first[0]);
  if (first[2] < 0) return fmt::format(": {} lacks expert {}'s", token, first[1]);
  const std::string of =
      first[2] == first[0] ? "" : fmt::format(" for {}", token_text(row, drawn, first[2]));
  if (of.empty() && first[1] == first[3])
    return fmt::format(": {} has expert {}'s", token, first[1]);
  return fmt::format(": {} has expert {}'s result{} in place of expert {}'s", token, first[3], of,
                     first[1]);
}

struct Computation {
  const char* name;
  std::string pattern, likely;
};

Computation words_for(const OtherComputation& found, const Symptoms& symptoms) {
  const std::string experts = fmt::format("{}", fmt::join(found.places, ", "));
  const Mesh& mesh = symptoms.mesh;
  const bool are_of_ep = found.count == mesh.size("ep");
  const auto is_size = [&](const char* axis) {
    return mesh.size(axis) > 1 &&
           std::fabs(found.factor - static_cast<double>(mesh.size(axis))) < 1e-6;
  };
  const bool is_often = found.count == mesh.size("edp") || found.count == mesh.size("etp") ||
                        found.count == mesh.size("cp") || found.count == mesh.size("tp");
  const Computation all[] = {
      {"shared left out", "the sum has the routed experts alone",
       "the shared MLP is not added, or its result is lost"},
      {"routed left out", "the sum has the shared MLP alone",
       "the routed experts are not added, or their result is lost"},
      {"shared without gate", "the sum has the shared MLP without the factor of its gate",
       "the gate of the shared MLP is not applied"},
      {"shared by logit", "the sum has the shared MLP times the logit of its gate",
       "the gate of the shared MLP is applied without its sigmoid"},
      {"gate on the sum", "the whole sum has the factor of the shared MLP's gate",
       "the gate of the shared MLP is applied to the routed experts too"},
      {"norm without experts", "the norm is that of the gradients outside of experts",
       "the gradients of experts do not count in the norm"},
      {"norm of mean of experts",
       fmt::format("the norm has the squares of all experts divided by {}", found.count),
       are_of_ep ? "squares of experts are averaged over the ranks of ep, which hold other ones"
                 : ""},
      {"norm with experts too often",
       fmt::format("the norm has the squares of all experts {} times", found.count),
       is_often ? "squares of experts are summed over ranks that hold the same ones" : ""},
      {"norm of some experts",
       fmt::format("of {} equal parts of the experts the norm has the squares of number {} alone",
                   found.count, found.which),
       are_of_ep ? "the experts of one rank of ep count in the norm, and those of the others do not"
                 : ""},
      {"other shares of routes",
       "it has the part of a balancing loss that takes other shares of routes",
       "the balancing loss counts other routes than the golden's: those of padding or of other "
       "sequences or microbatches, a rank's own alone, not all of a token, or only those that are "
       "kept; or it divides them by another number of tokens"},
      {"z of scores", "it has the part of a z loss of the scores in place of that of the logits",
       "the z loss is taken behind the softmax or sigmoid of the router"},
      {"moves of other counts",
       fmt::format("the selection bias of experts {} moved another way, by the right rate",
                   experts),
       "other routes are counted for it, as those of a rank or of a microbatch alone, or of "
       "padding"},
      {"biases without weights", "the biases of the experts' second products have no weights",
       "the bias of down is added behind the weights of the routes"},
      {"biases times",
       fmt::format("the biases of the experts' second products count {} times",
                   factor_text(found.factor)),
       std::fabs(found.factor) <= 1e-6 ? "the bias of down is left out"
       : is_size("etp") ? "each rank that holds a part of an expert adds its whole bias of down"
                        : ""},
      {"moves back", "the selection bias moved by the right rate, but the other way",
       "the sign of its move is wrong: an expert with many routes gets more"},
      {"no moves", "the selection bias did not move", "its update is left out"},
  };
  for (const Computation& one : all) {
    if (found.name == one.name) return one;
  }
  return {"", "", ""};
}

}  // namespace

std::optional<Proposal> propose_expert_results(const Difference& difference) {
  ExpertResults all;
  const ResultRow* example = nullptr;
  std::set<std::pair<int64_t, uint64_t>> seen;
  for (const ResultRow* row : difference.wrong) {
    const auto* found = evidence_of<ExpertResults>(*row);
    if (found == nullptr) return std::nullopt;
    if (!seen.emplace(row->microbatch, row->tokens).second) continue;  // a copy
    all.tokens += found->tokens;
    all.lost += found->lost;
    all.kept += found->kept;
    all.unweighted += found->unweighted;
    all.of_experts += found->of_experts;
    all.several += found->several;
    all.of_tokens += found->of_tokens;
    all.choices += found->choices;
    if (example == nullptr && !found->first.empty()) {
      example = row;
      all.first = found->first;
    }
  }
  std::vector<std::string> parts, causes;
  const auto add = [&](int64_t number, const std::string& part, const std::string& cause) {
    if (number == 0) return;
    parts.push_back(fmt::format("{} {}", number, part));
    if (!cause.empty()) causes.push_back(cause);
  };
  const bool limited = all.lost > 0 && all.kept > 0;
  add(all.lost, "routes without a result",
      limited || all.several > 0
          ? ""
          : "a capacity or a buffer has too few rows, or an expert leaves tokens out");
  add(all.kept, "with a result that the golden drops",
      limited ? "experts of limited capacity keep other routes" : "a capacity is too large");
  add(all.unweighted, "tokens without the weights of their routes",
      "the results of experts are added without weights");
  add(all.of_experts, "routes with the result of another expert for their token",
      "rows went to other experts than those that the router chose, or experts have the weights of "
      "others");
  add(all.several, "routes with the results of several experts for their token",
      "ranks take an expert's number among their own for its number among all, or the other way "
      "round");
  add(all.of_tokens, "routes with a result for another token",
      "rows of tokens are cut, sorted or put back in another order than their counts say");
  std::string example_of_it;
  if (example != nullptr && (difference.first_copies || example->undrawn == 0)) {
    const auto& copies = difference.first_copies;
    example_of_it =
        example_text(*example, copies ? copies->drawn : std::vector<int64_t>(), all.first);
  }
  return Proposal{
      .pattern = fmt::format("each of {} wrong sums adds up other results of experts: {}{}",
                             all.tokens, fmt::join(parts, ", "), example_of_it),
      .likely = fmt::format("{}", fmt::join(causes, "; and ")),
      .description = all.choices,
      .ranks = difference.ranks};
}

std::optional<Proposal> propose_computation(const Difference& difference) {
  const OtherComputation* first = nullptr;
  int64_t most = 0;
  for (const ResultRow* row : difference.wrong) {
    const auto* found = evidence_of<OtherComputation>(*row);
    if (found == nullptr || (first != nullptr && !(*found == *first))) return std::nullopt;
    if (first == nullptr) first = found;
    if (!found->places.empty()) most = std::max(most, found->places.front());
  }
  if (first == nullptr) return std::nullopt;
  const Computation words = words_for(*first, difference.symptoms);
  if (words.pattern.empty()) return std::nullopt;
  const bool shares = first->name == "other shares of routes";
  if (shares && most < kFewestTokens) return std::nullopt;
  const auto numbers =
      static_cast<double>(first->count) * static_cast<double>(difference.wrong.size());
  return Proposal{.pattern = words.pattern,
                  .likely = words.likely,
                  .description = shares ? kFreeNumber * numbers : kFreeNumber,
                  .ranks = difference.ranks};
}

}  // namespace shardproof::sim::judge
