#include "sequence/cu_seqlens.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.h"
#include "base/error.h"
#include "mesh/layout.h"
#include "tensor/int64_list.h"

namespace shardproof {
std::vector<int64_t> cu_seqlens_of(const std::vector<int64_t>& lengths, int64_t multiple) {
  SHARDPROOF_ASSERT(multiple >= 1, "lengths are rounded up to a multiple of at least 1");
  std::vector<int64_t> cu = {0};
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) {
      throw_bad_input(fmt::format("sequence {} has a length of {}", i, lengths[i]),
                      "give 0 or more");
    }
    const auto padded = checked_add(lengths[i], multiple - 1);
    const auto next = padded ? checked_add(cu.back(), *padded / multiple * multiple) : std::nullopt;
    if (!next)
      throw_bad_input("the lengths of a pack do not fit 64 bits", "give shorter sequences");
    cu.push_back(*next);
  }
  return cu;
}

void check_cu_seqlens(const std::vector<int64_t>& cu, const char* name) {
  if (cu.empty() || cu.front() != 0) {
    throw_bad_input(
        fmt::format("{} begins with {}", name, cu.empty() ? "nothing" : std::to_string(cu.front())),
        "let it begin with 0, with one entry more than there are sequences");
  }
  for (size_t i = 1; i < cu.size(); ++i) {
    if (cu[i] >= cu[i - 1]) continue;
    throw_bad_input(
        fmt::format("{} falls from {} to {} at sequence {}", name, cu[i - 1], cu[i], i - 1),
        "let it never fall: entry i+1 is where sequence i ends");
  }
}

std::vector<int64_t> read_cu_seqlens(const at::Tensor& cu_seqlens, int64_t num_positions) {
  const bool integer =
      cu_seqlens.scalar_type() == at::kInt || cu_seqlens.scalar_type() == at::kLong;
  if (!integer || cu_seqlens.dim() != 1 || cu_seqlens.size(0) == 0) {
    throw_bad_input(
        fmt::format("cu_seqlens is {} of shape [{}]", c10::toString(cu_seqlens.scalar_type()),
                    fmt::join(cu_seqlens.sizes(), ",")),
        "give int32 or int64 [N+1]");
  }
  std::vector<int64_t> cu = int64_list(cu_seqlens);
  check_cu_seqlens(cu, "cu_seqlens");
  if (num_positions >= 0 && cu.back() != num_positions) {
    throw_bad_input(
        fmt::format("cu_seqlens ends at {}, the row has {} positions", cu.back(), num_positions),
        "let the last entry be the length of the row");
  }
  return cu;
}

}  // namespace shardproof
