// all_reduce and reduce_scatter.
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

// A contiguous copy of `tensor` in `dtype` on the backend's device; bool becomes 0 and 1.
at::Tensor reduction_buffer(const c10d::Backend& backend, const at::Tensor& tensor,
                            at::ScalarType dtype) {
  const at::Tensor plain = wire::on_device_of(backend, tensor.detach());
  if (plain.scalar_type() != dtype) return plain.to(dtype).contiguous();
  return plain.clone(at::MemoryFormat::Contiguous);
}

at::Tensor finish_reduction(at::Tensor sum, ReduceOp wanted, ReduceOp ran,
                            const at::TensorOptions& like, int64_t count) {
  if (wanted == ReduceOp::kAvg && ran == ReduceOp::kSum) wire::divide(sum, count);
  return sum.to(like.device(), c10::typeMetaToScalarType(like.dtype()));
}

}  // namespace

at::Tensor Communicator::all_reduce(const at::Tensor& input, ReduceOp op, std::string_view label) {
  return start_all_reduce(input, op, label, false).wait();
}

PendingCollective Communicator::all_reduce_async(const at::Tensor& input, ReduceOp op,
                                                 std::string_view label) {
  return start_all_reduce(input, op, label, true);
}

PendingCollective Communicator::start_all_reduce(const at::Tensor& input, ReduceOp op,
                                                 std::string_view label, bool asynchronous) {
  wire::check_reduction(input.scalar_type(), op, label);
  const at::NoGradGuard no_grad;
  if (!backend_) return finished(input.detach().clone(at::MemoryFormat::Contiguous));
  Call call = new_call(Op::kAllReduce, input, label);
  call.reduce = op;
  const wire::Reduction reduction = wire::reduction_for(input.scalar_type(), op, abilities_);
  const at::Tensor sum = reduction_buffer(*backend_, input, reduction.dtype);
  const bool nothing = sum.numel() == 0 && !abilities_.empty;
  const at::Tensor buffer = nothing ? at::zeros({1}, sum.options()) : sum;
  const auto work = [&] {
    Tensors buffers{buffer};
    c10d::AllreduceOptions options;
    options.reduceOp = wire::to_c10d(reduction.op);
    return backend_->allreduce(buffers, options);
  };
  const auto finish = [=, like = input.options(), count = size()] {
    return finish_reduction(sum, op, reduction.op, like, count);
  };
  return start(std::move(call),
               {.asynchronous = asynchronous, .private_input = true, .input = input}, work, finish);
}

at::Tensor Communicator::reduce_scatter(const at::Tensor& full, int64_t dim, ReduceOp op,
                                        std::string_view label, const std::vector<int64_t>& sizes) {
  return start_reduce_scatter(full, dim, op, label, sizes, false).wait();
}

PendingCollective Communicator::reduce_scatter_async(const at::Tensor& full, int64_t dim,
                                                     ReduceOp op, std::string_view label,
                                                     const std::vector<int64_t>& sizes) {
  return start_reduce_scatter(full, dim, op, label, sizes, true);
}

// The dim is moved to the front, so that each part is a run of rows. For a backend without
// reduce_scatter, rows travel by all_to_all and are summed here in rank order.
PendingCollective Communicator::start_reduce_scatter(const at::Tensor& full, int64_t dim,
                                                     ReduceOp op, std::string_view label,
                                                     const std::vector<int64_t>& sizes,
                                                     bool asynchronous) {
  wire::check_reduction(full.scalar_type(), op, label);
  const at::NoGradGuard no_grad;
  SHARDPROOF_ASSERT(dim >= -full.dim() && dim < full.dim(), "a dim of the tensor");
  if (dim < 0) dim += full.dim();
  std::vector<int64_t> rows = sizes.empty() ? even_sizes(full.size(dim), Op::kReduceScatter, label)
                                            : checked_sizes(sizes, -1, Op::kReduceScatter, label);
  const int64_t total = c10::sum_integers(rows);
  if (total != full.size(dim)) {
    throw_failed(fmt::format("reduce_scatter {} '{}': the sizes sum to {}, dim {} is {}", group_,
                             label, total, dim, full.size(dim)),
                 "give sizes that sum to the dim", "threw");
  }
  if (!backend_) return finished(full.detach().clone(at::MemoryFormat::Contiguous));

  Call call = new_call(Op::kReduceScatter, full, label);
  call.reduce = op;
  call.split_sizes = sizes;
  call.dim = dim;
  const bool even = std::all_of(rows.begin(), rows.end(), [&](int64_t r) { return r == rows[0]; });
  const bool native = abilities_.uneven_lists || (even && abilities_.reduce_scatter);
  const wire::Reduction reduction = wire::reduction_for(full.scalar_type(), op, abilities_);
  const at::Tensor front = full.detach().movedim(dim, 0);
  const at::Tensor source =
      native ? wire::on_device_of(*backend_, front).to(reduction.dtype).contiguous()
             : wire::for_moving(*backend_, front);
  const bool private_input = source.data_ptr() != full.data_ptr();
  const int64_t own = rows[static_cast<size_t>(group_rank_)];
  std::vector<int64_t> shape = source.sizes().vec();
  shape[0] = native ? own : own * size();
  at::Tensor result = at::empty(shape, source.options());

  const auto work = [&]() -> c10::intrusive_ptr<c10d::Work> {
    at::Tensor input = source;
    c10d::ReduceScatterOptions options;
    options.reduceOp = wire::to_c10d(reduction.op);
    if (native && even) return backend_->_reduce_scatter_base(result, input, options);
    if (native) {
      Tensors outputs{result};
      std::vector<Tensors> inputs{source.split_with_sizes(rows, 0)};
      return backend_->reduce_scatter(outputs, inputs, options);
    }
    std::vector<int64_t> from(rows.size(), own);
    return backend_->alltoall_base(result, input, from, rows, {});
  };
  const auto finish = [=, like = full.options(), count = size()] {
    at::Tensor sum = result;
    if (!native) {
      std::vector<int64_t> pieces = result.sizes().vec();
      pieces[0] = own;
      pieces.insert(pieces.begin(), count);
      // bool travels as bytes 0 and 1, which are reduced by max or min.
      const ReduceOp local = like.dtype() == at::kBool ? reduction.op : op;
      sum = wire::reduce_in_order(result.view(pieces), local)
                .to(like.device(), c10::typeMetaToScalarType(like.dtype()));
    } else {
      sum = finish_reduction(sum, op, reduction.op, like, count);
    }
    return sum.movedim(0, dim).contiguous();
  };
  return start(std::move(call),
               {.asynchronous = asynchronous, .private_input = private_input, .input = full}, work,
               finish);
}

}  // namespace shardproof
