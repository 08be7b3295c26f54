#include "parallel/ulysses/slice_inputs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "collective/mappings.h"
#include "mesh/layout.h"

namespace shardproof {
namespace {

void check_inputs(const at::Tensor& ids, const std::optional<at::Tensor>& positions) {
  if (ids.dim() != 2) {
    throw_bad_input(fmt::format("input_ids is [{}]", fmt::join(ids.sizes(), ", ")),
                    "give it as [B, S]");
  }
  if (positions && positions->sizes() != ids.sizes()) {
    throw_bad_input(fmt::format("position_ids is [{}], input_ids [{}]",
                                fmt::join(positions->sizes(), ", "), fmt::join(ids.sizes(), ", ")),
                    "give one position per token, or none at all");
  }
}

}  // namespace

SlicedInputs slice_and_pad_inputs(const at::Tensor& input_ids,
                                  const std::optional<at::Tensor>& position_ids,
                                  const Communicator& ulysses) {
  check_inputs(input_ids, position_ids);
  const int64_t length = input_ids.size(1), padded = round_up(length, ulysses.size());
  SlicedInputs sliced{.input_ids = {}, .padding = padded - length};
  const int64_t share = padded / ulysses.size();
  sliced.input_ids = at::constant_pad_nd(input_ids, {0, sliced.padding}, 0)
                         .narrow(1, ulysses.rank() * share, share)
                         .contiguous();
  if (position_ids) {
    const at::Tensor more = at::arange(sliced.padding, position_ids->options())
                                .unsqueeze(0)
                                .expand({input_ids.size(0), sliced.padding});
    sliced.position_ids = at::cat({*position_ids, more}, 1);
  }
  return sliced;
}

at::Tensor gather_and_unpad(const at::Tensor& local, Communicator& ulysses, int64_t dim,
                            int64_t unpad_dim, int64_t padding, std::string_view label) {
  const at::Tensor gathered = all_gather_with_slice_backward(local, ulysses, dim, label);
  const int64_t length = gathered.size(unpad_dim);
  if (padding < 0 || padding > length) {
    throw_bad_input(fmt::format("{} entries of padding in a dim of {}", padding, length),
                    "give the padding that slice_and_pad_inputs returned");
  }
  return gathered.narrow(unpad_dim, 0, length - padding);
}

}  // namespace shardproof
