// One file scores other targets: from the logits for token t it takes the logprob of the id that
// stands k later or earlier in the row. Such a value is right where both ids are one, and says
// nothing else of the logits.
#include <fmt/format.h>

#include <map>
#include <tuple>

#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/signs.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr int64_t kFarthest = 4;

// The tokens that can show it: a token with a probability above 1/2 may be right by chance.
struct Neighbors {
  double right = 0, all = 0;
};

struct Found {
  Neighbors same, other;         // by the ids of the token and of its neighbor
  double nats = 0, squared = 0;  // of the tokens with another id, the second
  std::vector<double> left;      // differences of those with the same id; NaN: another one
};

Found count_neighbors(const Comparison& comparison, int64_t by) {
  const Pair& pair = comparison.pair;
  Found found;
  found.left.assign(pair.tokens.size(), NAN);
  std::map<int64_t, Neighbors> same_of_row, other_of_row;
  for (size_t i = 0; i < pair.tokens.size(); ++i) {
    const Token& token = pair.tokens[i];
    const int64_t from = token.position + by;
    if (from < 0 || from >= pair.length) continue;
    const bool same = pair.ids[pair.at(token.row, from)] == token.id;
    const double difference = comparison.differences[i];
    if (same) found.left[i] = difference;
    if (!same) found.squared += difference * difference;
    if (std::abs(token.a) <= -std::log(kOpen)) continue;
    const bool right = !comparison.is_above_noise(i);
    for (Neighbors* counts : {same ? &found.same : &found.other,
                              same ? &same_of_row[token.row] : &other_of_row[token.row]}) {
      counts->all += 1;
      counts->right += right ? 1 : 0;
    }
  }
  // By chance a token with the same id is right as often as the other tokens of its row are.
  for (const auto& [row, same] : same_of_row) {
    const Neighbors& other = other_of_row[row];
    found.nats -= same.right * std::log((other.right + 1) / (other.all + 2));
  }
  return found;
}

}  // namespace

std::optional<Claim> propose_targets(const Comparison& comparison) {
  const Pair& pair = comparison.pair;
  if (!pair.has_ids) return std::nullopt;
  std::optional<Claim> best;
  for (int64_t by = -kFarthest; by <= kFarthest; ++by) {
    if (by == 0) continue;
    const Found found = count_neighbors(comparison, by);
    const auto& [same, other] = std::tie(found.same, found.other);
    if (same.all == 0 || same.right < kLeastRight * same.all) continue;
    if (other.all - other.right < kLeastWrong * other.all) continue;
    Claim claim{
        .cause = "targets",
        .text = fmt::format(
            "of {:.0f} tokens whose id stands {} {} in the row again {:.0f} are right, and of "
            "{:.0f} others {:.0f} are wrong (those with a probability above 1/2 are not counted)",
            same.all, std::abs(by), by > 0 ? "later" : "earlier", same.right, other.all,
            other.all - other.right),
        .likely = fmt::format("one file takes the logprob of token t {} {} from the logits for "
                              "token t: its targets were shifted twice, or not at all",
                              by > 0 ? "+" : "-", std::abs(by)),
        .description = std::log(2.0 * kFarthest),
        .gained = found.nats,
        .share = found.squared / comparison.squared,
        .leaves_noise = comparison.is_noise(found.left)};
    if (!claim.leaves_noise || !may_be_claimed(claim)) continue;
    keep_better(best, std::move(claim));
  }
  return best;
}

}  // namespace shardproof::sim::logprobs
