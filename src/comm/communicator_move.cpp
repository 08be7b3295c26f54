// all_gather and all_to_all.
#include <fmt/format.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "comm/communicator.h"
#include "comm/pending_collective.h"
#include "comm/wire.h"

namespace shardproof {
namespace {

using Tensors = std::vector<at::Tensor>;

// Whether pieces that lie one behind the other are already the gathered tensor: all dims before
// the gathered one have size 1.
bool is_front(const at::Tensor& tensor, int64_t dim) {
  return c10::multiply_integers(tensor.sizes().slice(0, static_cast<size_t>(dim))) == 1;
}

// The memory that the backend writes: the caller's, if the backend writes the result itself.
at::Tensor gathering_memory(const at::Tensor& into, bool as_it_is, at::IntArrayRef shape,
                            const at::TensorOptions& wire) {
  if (into.defined() && as_it_is && into.device() == wire.device() &&
      into.scalar_type() == c10::typeMetaToScalarType(wire.dtype())) {
    return into.detach().view(shape);
  }
  return at::empty(shape, wire);
}

// Returns the result in the caller's memory, if there is any. The new version number makes autograd
// refuse a backward that saved the old content.
at::Tensor gathered_into(const at::Tensor& into, const at::Tensor& memory,
                         const at::Tensor& result) {
  if (!into.defined()) return result;
  if (memory.is_alias_of(into)) {
    into.unsafeGetTensorImpl()->bump_version();
  } else {
    into.detach().copy_(result);
  }
  return into;
}

}  // namespace

at::Tensor Communicator::all_gather(const at::Tensor& local, int64_t dim, std::string_view label,
                                    const std::vector<int64_t>& sizes) {
  return start_all_gather({}, local, dim, label, sizes, false).wait();
}

PendingCollective Communicator::all_gather_async(const at::Tensor& local, int64_t dim,
                                                 std::string_view label,
                                                 const std::vector<int64_t>& sizes) {
  return start_all_gather({}, local, dim, label, sizes, true);
}

at::Tensor Communicator::all_gather_into(const at::Tensor& into, const at::Tensor& local,
                                         int64_t dim, std::string_view label,
                                         const std::vector<int64_t>& sizes) {
  SHARDPROOF_ASSERT(into.defined(), "memory to gather into");
  return start_all_gather(into, local, dim, label, sizes, false).wait();
}

PendingCollective Communicator::all_gather_into_async(const at::Tensor& into,
                                                      const at::Tensor& local, int64_t dim,
                                                      std::string_view label,
                                                      const std::vector<int64_t>& sizes) {
  SHARDPROOF_ASSERT(into.defined(), "memory to gather into");
  return start_all_gather(into, local, dim, label, sizes, true);
}

PendingCollective Communicator::start_all_gather(const at::Tensor& into, const at::Tensor& local,
                                                 int64_t dim, std::string_view label,
                                                 const std::vector<int64_t>& sizes,
                                                 bool asynchronous) {
  const at::NoGradGuard no_grad;
  SHARDPROOF_ASSERT(dim >= -local.dim() && dim < local.dim(), "a dim of the tensor");
  if (dim < 0) dim += local.dim();
  if (!sizes.empty()) checked_sizes(sizes, local.size(dim), Op::kAllGather, label);
  if (into.defined()) {
    std::vector<int64_t> shape = local.sizes().vec();
    shape[static_cast<size_t>(dim)] =
        sizes.empty() ? local.size(dim) * size() : c10::sum_integers(sizes);
    SHARDPROOF_ASSERT(into.sizes() == at::IntArrayRef(shape) && into.is_contiguous() &&
                          into.scalar_type() == local.scalar_type() && !into.is_alias_of(local),
                      "memory that an all_gather's result fits, and that is not its input's");
  }
  if (!backend_) {
    const at::Tensor own = local.detach();
    return finished(into.defined() ? gathered_into(into, own, own)
                                   : own.clone(at::MemoryFormat::Contiguous));
  }
  Call call = new_call(Op::kAllGather, local, label);
  call.split_sizes = sizes;
  call.dim = dim;
  const bool even = std::ranges::all_of(sizes, [&](int64_t s) { return s == sizes[0]; });
  return even ? gather_even(std::move(call), into, local, asynchronous)
              : gather_uneven(std::move(call), into, local, sizes, asynchronous);
}

// Gathers flat pieces one behind the other, then moves the piece index beside the gathered dim.
PendingCollective Communicator::gather_even(Call call, const at::Tensor& into,
                                            const at::Tensor& local, bool asynchronous) {
  const at::Tensor source = wire::for_moving(*backend_, local);
  const bool nothing = source.numel() == 0 && !abilities_.empty;
  const at::Tensor flat = nothing ? at::zeros({1}, source.options()) : source.view({-1});
  const at::Tensor gathered = gathering_memory(into, !nothing && is_front(local, call.dim),
                                               {flat.numel() * size()}, source.options());
  const bool private_input = source.data_ptr() != local.data_ptr();
  const bool private_output = !into.defined() || !gathered.is_alias_of(into);
  const auto work = [&] {
    at::Tensor output = gathered, input = flat;
    return backend_->_allgather_base(output, input, {});
  };
  const auto finish = [=, dim = call.dim, like = local.options(), count = size()] {
    std::vector<int64_t> shape = source.sizes().vec();
    std::vector<int64_t> pieces = shape;
    pieces.insert(pieces.begin(), count);
    shape[static_cast<size_t>(dim)] *= count;
    const at::Tensor all = nothing ? at::empty(pieces, source.options()) : gathered.view(pieces);
    return gathered_into(into, gathered,
                         wire::moved_back(all.movedim(0, dim).reshape(shape), like));
  };
  return start(std::move(call),
               {.asynchronous = asynchronous,
                .private_input = private_input,
                .input = local,
                .private_output = private_output},
               work, finish);
}

PendingCollective Communicator::gather_uneven(Call call, const at::Tensor& into,
                                              const at::Tensor& local,
                                              const std::vector<int64_t>& sizes,
                                              bool asynchronous) {
  const int64_t dim = call.dim;
  const at::TensorOptions like = local.options();
  at::Tensor source = wire::for_moving(*backend_, local);
  if (abilities_.uneven_lists) {
    std::vector<int64_t> shape = source.sizes().vec();
    shape[static_cast<size_t>(dim)] = c10::sum_integers(sizes);
    const at::Tensor gathered =
        gathering_memory(into, is_front(local, dim), shape, source.options());
    const bool private_input = source.data_ptr() != local.data_ptr();
    const bool private_output = !into.defined() || !gathered.is_alias_of(into);
    const auto work = [&] {
      std::vector<Tensors> outputs{gathered.split_with_sizes(sizes, dim)};
      Tensors inputs{source};
      return backend_->allgather(outputs, inputs, {});
    };
    const auto finish = [into, gathered, like] {
      return gathered_into(into, gathered, wire::moved_back(gathered, like));
    };
    return start(std::move(call),
                 {.asynchronous = asynchronous,
                  .private_input = private_input,
                  .input = local,
                  .private_output = private_output},
                 work, finish);
  }
  // Every piece is padded to the longest, with the gathered dim in front.
  const at::Tensor front = source.movedim(dim, 0);
  std::vector<int64_t> shape = front.sizes().vec();
  shape[0] = *std::ranges::max_element(sizes);
  const at::Tensor padded = at::zeros(shape, source.options());
  padded.narrow(0, 0, front.size(0)).copy_(front);
  const bool nothing = padded.numel() == 0;
  const at::Tensor flat = nothing ? at::zeros({1}, source.options()) : padded.view({-1});
  const at::Tensor gathered = at::empty({flat.numel() * size()}, source.options());
  const auto work = [&] {
    at::Tensor output = gathered, input = flat;
    return backend_->_allgather_base(output, input, {});
  };
  const auto finish = [=] {
    const auto count = static_cast<int64_t>(sizes.size());
    std::vector<int64_t> pieces = shape;
    pieces.insert(pieces.begin(), count);
    const at::Tensor all = nothing ? at::empty(pieces, padded.options()) : gathered.view(pieces);
    Tensors parts;
    for (int64_t i = 0; i < count; ++i) {
      parts.push_back(all.select(0, i).narrow(0, 0, sizes[static_cast<size_t>(i)]));
    }
    return gathered_into(into, gathered,
                         wire::moved_back(at::cat(parts, 0).movedim(0, dim).contiguous(), like));
  };
  return start(std::move(call),
               {.asynchronous = asynchronous, .private_input = true, .input = local}, work, finish);
}

at::Tensor Communicator::all_to_all(const at::Tensor& input, std::string_view label,
                                    const std::vector<int64_t>& input_sizes,
                                    const std::vector<int64_t>& output_sizes) {
  return start_all_to_all(input, label, input_sizes, output_sizes, false).wait();
}

PendingCollective Communicator::all_to_all_async(const at::Tensor& input, std::string_view label,
                                                 const std::vector<int64_t>& input_sizes,
                                                 const std::vector<int64_t>& output_sizes) {
  return start_all_to_all(input, label, input_sizes, output_sizes, true);
}

PendingCollective Communicator::start_all_to_all(const at::Tensor& input, std::string_view label,
                                                 std::vector<int64_t> input_sizes,
                                                 std::vector<int64_t> output_sizes,
                                                 bool asynchronous) {
  const at::NoGradGuard no_grad;
  const auto own = static_cast<size_t>(group_rank_);
  if (input_sizes.empty()) input_sizes = even_sizes(input.size(0), Op::kAllToAll, label);
  checked_sizes(input_sizes, -1, Op::kAllToAll, label);
  if (output_sizes.empty()) {
    output_sizes.assign(static_cast<size_t>(size()), input_sizes[own]);
  }
  checked_sizes(output_sizes, input_sizes[own], Op::kAllToAll, label);
  if (c10::sum_integers(input_sizes) != input.size(0)) {
    throw_failed(fmt::format("all_to_all {} '{}': the input sizes sum to {}, the input has {} rows",
                             group_, label, c10::sum_integers(input_sizes), input.size(0)),
                 "give input sizes that sum to the rows", "threw");
  }
  if (!backend_) return finished(input.detach().clone(at::MemoryFormat::Contiguous));
  Call call = new_call(Op::kAllToAll, input, label);
  call.split_sizes = input_sizes;
  call.output_sizes = output_sizes;
  const at::Tensor source = wire::for_moving(*backend_, input);
  std::vector<int64_t> shape = source.sizes().vec();
  shape[0] = c10::sum_integers(output_sizes);
  const at::Tensor result = at::empty(shape, source.options());
  const bool private_input = source.data_ptr() != input.data_ptr();
  const auto work = [&] {
    at::Tensor target = result, from = source;
    return backend_->alltoall_base(target, from, output_sizes, input_sizes, {});
  };
  const auto finish = [result, like = input.options()] { return wire::moved_back(result, like); };
  return start(std::move(call),
               {.asynchronous = asynchronous, .private_input = private_input, .input = input}, work,
               finish);
}

}  // namespace shardproof
