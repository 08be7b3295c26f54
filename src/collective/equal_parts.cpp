#include "collective/equal_parts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/checked.h"
#include "base/error.h"

namespace shardproof {

int64_t divide(int64_t value, int64_t parts, std::string_view what, std::string_view axis) {
  SHARDPROOF_ASSERT(parts > 0, "parts of which there is at least one");
  if (value % parts == 0) return value / parts;
  throw_refused(
      fmt::format("{} {} does not divide by the {} ranks of {}", what, value, parts, axis),
      fmt::format("pad it to {}, or choose a number of ranks that divides it",
                  ceil_divide(value, parts) * parts));
}

int64_t divide(int64_t value, const Communicator& axis, std::string_view what) {
  return divide(value, axis.size(), what, axis.axis());
}

at::Tensor flat_chunk(const at::Tensor& tensor, const Communicator& axis) {
  const int64_t length = divide(tensor.numel(), axis, "numel");
  return tensor.detach().reshape({-1}).narrow(0, axis.rank() * length, length);
}

at::Tensor gather_flat_chunks(const at::Tensor& chunk, Communicator& axis, std::string_view label) {
  return axis.all_gather(chunk.detach().reshape({-1}), 0, label);
}

IndexRange vocab_range_of_whole(int64_t vocab_size, int64_t rank, int64_t size) {
  return vocab_range_of_part(divide(vocab_size, size, "vocab_size"), rank);
}

}  // namespace shardproof
