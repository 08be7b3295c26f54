// Zeros in shifted positions.
#include <fmt/format.h>

#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kLargestMaskShift = 8;
constexpr int64_t kFewestTelling = 4;

// 0: a row of zeros; 1: a row with other values; -1: an unknown row.
std::vector<int8_t> rows_with_values(const Assembled& tensor, const std::vector<double>& values) {
  const int64_t inner = walk_along(tensor.shape, 1).inner;
  std::vector<int8_t> out(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]), -1);
  for (size_t e = 0; e < values.size(); ++e) {
    if (!tensor.known[e]) continue;
    int8_t& here = out[e / static_cast<size_t>(inner)];
    here = static_cast<int8_t>(here == 1 || values[e] != 0);
  }
  return out;
}

// The number of positions that prove that the zeros of `actual` lie `shift` after the golden's; 0
// when one refutes it.
int64_t masks_agree(const std::vector<int8_t>& actual, const std::vector<int8_t>& golden,
                    int64_t positions, int64_t shift) {
  int64_t telling = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(actual.size()); ++i) {
    const int64_t source = i % positions - shift;
    if (source < 0 || source >= positions) continue;
    const int8_t here = actual[static_cast<size_t>(i)];
    const int8_t there = golden[static_cast<size_t>(i - shift)];
    const int8_t right = golden[static_cast<size_t>(i)];
    if (here < 0 || there < 0) continue;
    if (here != there) return 0;
    if (right != there) ++telling;
  }
  return telling;
}

// Whether elements that neither mask hides equal the golden up to one factor per sample, which
// comes from another number of counted tokens. A mask changes nothing else.
bool unmasked_agree(const Assembled& tensor) {
  const Walk walk = walk_along(tensor.shape, 0);
  for (int64_t sample = 0; sample < walk.size; ++sample) {
    FactorSums both;
    for (int64_t i = 0; i < walk.inner; ++i) {
      const auto e = static_cast<size_t>(sample * walk.inner + i);
      if (!tensor.known[e] || tensor.actual[e] == 0 || tensor.golden[e] == 0) continue;
      both.add(tensor.actual[e], tensor.golden[e]);
    }
    if (both.count > 0 && !both.fits(0.1)) return false;
  }
  return true;
}

}  // namespace

std::optional<Proposal> propose_mask_shift(const Assembled& tensor, const Mesh& /*mesh*/) {
  if (!tensor.token_dims || tensor.shape.size() < 2) return std::nullopt;
  const std::vector<int8_t> actual = rows_with_values(tensor, tensor.actual);
  const std::vector<int8_t> golden = rows_with_values(tensor, tensor.golden);
  if (actual == golden || !unmasked_agree(tensor)) return std::nullopt;
  for (int64_t size = 1; size <= kLargestMaskShift; ++size) {
    for (const int64_t shift : {size, -size}) {
      const int64_t telling = masks_agree(actual, golden, tensor.shape[1], shift);
      if (telling < kFewestTelling) continue;
      return Proposal{
          .pattern = fmt::format("the positions that are zero are the golden's moved by {}", shift),
          .detail = fmt::format("; {} of them tell", telling),
          .likely = fmt::format("a mask is off by {}", size),
          .description = std::log(2.0 * kLargestMaskShift),
          .parameters = {static_cast<double>(shift)},
          .left = tensor.golden_size};  // the values there are unknown
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
