#include "parallel/data/unit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/precision.h"
#include "tensor/memory.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

void add_to(at::Tensor& sum, const at::Tensor& addend) {
  if (sum.defined()) {
    sum.add_(addend);
  } else {
    sum = addend;
  }
}

// A call whose wait throws is no longer pending either.
at::Tensor wait_for(std::optional<PendingCollective>& pending) {
  PendingCollective call = std::move(*pending);
  pending.reset();
  return call.wait();
}

}  // namespace

FsdpUnit::FsdpUnit(std::string name, std::vector<ParameterPtr> parameters, MeshComm& comm,
                   const ShardAxes& axes, bool cpu_offload, at::ScalarType dtype, at::Device device)
    : name_(std::move(name)),
      parameters_(std::move(parameters)),
      comm_(comm),
      cpu_offload_(cpu_offload),
      flat_({}, 1) {
  make_shards(axes, dtype, device);
  shard_axis_ = &comm.along(axes.shard);
  replicate_axis_ = axes.replicate.empty() ? nullptr : &comm.along(axes.replicate);
  flat_ = flat_layout();
  is_empty_ = std::ranges::all_of(whole_, [](const at::Tensor& leaf) { return leaf.numel() == 0; });
  kept_.resize(parameters_.size());
  gradients_.resize(parameters_.size());
}

void FsdpUnit::make_shards(const ShardAxes& axes, at::ScalarType dtype, at::Device device) {
  const at::Device home = cpu_offload_ ? at::Device(at::kCPU) : device;
  for (const ParameterPtr& parameter : parameters_) {
    const at::Tensor full = parameter->tensor;
    const std::vector<int64_t> shape =
        parameter->layout.local_shape(parameter->global_shape, comm_.mesh(), comm_.rank());
    if (!axes.shard.empty()) parameter->layout.append(Cut::chunk(0, axes.shard));
    parameter->master = cut(full, parameter->layout, comm_.mesh(), comm_.rank())
                            .to(at::TensorOptions().device(home).dtype(wider_type(dtype)));
    parameter->tensor = at::empty(shape, at::TensorOptions().dtype(dtype).device(device))
                            .requires_grad_(parameter->trainable);
    whole_.push_back(parameter->tensor.variable_data());
    free_memory(whole_.back());
  }
}

FlatShards FsdpUnit::flat_layout() const {
  std::vector<std::vector<int64_t>> shapes;
  for (const at::Tensor& leaf : whole_) shapes.push_back(leaf.sizes().vec());
  return FlatShards(std::move(shapes), shard_axis_->size());
}

// This rank's input of a gather, in the leaves' dtype and on their device.
at::Tensor FsdpUnit::packed_shards() const {
  std::vector<at::Tensor> shards;
  for (const ParameterPtr& parameter : parameters_) shards.push_back(parameter->master);
  return flat_.pack_shards(shards, whole_[0].scalar_type()).to(whole_[0].device());
}

void FsdpUnit::start_gather() {
  if (state_ != State::kSharded || is_empty_) return;
  const at::NoGradGuard no_grad;
  gathering_ = shard_axis_->all_gather_async(packed_shards(), 0, name_ + " gather", flat_.sizes());
  state_ = State::kGathering;
}

void FsdpUnit::gather() {
  if (state_ == State::kWhole || is_empty_) return;
  const at::NoGradGuard no_grad;
  at::Tensor flat;
  if (state_ == State::kGathering) {
    state_ = State::kSharded;
    flat = wait_for(gathering_);
  } else {
    flat = shard_axis_->all_gather(packed_shards(), 0, name_ + " gather", flat_.sizes());
  }
  for (const at::Tensor& leaf : whole_) allocate_memory(leaf);
  flat_.unpack_whole(flat, whole_);
  state_ = State::kWhole;
}

void FsdpUnit::reshard() {
  if (gathering_) wait_for(gathering_);
  if (state_ == State::kWhole) {
    for (const at::Tensor& leaf : whole_) free_memory(leaf);
  }
  state_ = State::kSharded;
}

// In the wider type; undefined where the backward left none.
at::Tensor FsdpUnit::take_leaf_gradient(const Parameter& parameter) const {
  const at::Tensor grad = parameter.tensor.grad();
  if (!grad.defined()) return grad;
  parameter.tensor.mutable_grad() = at::Tensor();
  return grad.detach();
}

void FsdpUnit::keep_gradients() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor grad = take_leaf_gradient(*parameters_[i]);
    if (grad.defined()) add_to(kept_[i], grad.to(wider_type(grad.scalar_type())));
  }
}

// Takes the gradients from the leaves and from kept_; afterwards only the buffer has them.
at::Tensor FsdpUnit::packed_gradients() {
  std::vector<at::Tensor> whole;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    whole.push_back(take_leaf_gradient(*parameters_[i]));
    if (!kept_[i].defined()) continue;
    if (whole[i].defined()) kept_[i].add_(whole[i]);
    whole[i] = kept_[i];
    kept_[i] = at::Tensor();
  }
  return flat_.pack_whole(whole, whole_[0].options().dtype(wider_type(whole_[0].scalar_type())));
}

void FsdpUnit::start_reduce() {
  if (is_empty_) return;
  const at::NoGradGuard no_grad;
  finish_reduce();
  reducing_ = shard_axis_->reduce_scatter_async(packed_gradients(), 0, ReduceOp::kAvg,
                                                name_ + " reduce", flat_.sizes());
}

void FsdpUnit::finish_reduce() {
  if (!reducing_) return;
  const at::NoGradGuard no_grad;
  at::Tensor own = wait_for(reducing_);
  if (std::exchange(abandoned_, false)) return;
  if (replicate_axis_) {
    own = replicate_axis_->all_reduce(own, ReduceOp::kAvg, name_ + " reduce over copies");
  }
  if (cpu_offload_) own = own.to(at::kCPU);
  const std::vector<at::Tensor> parts = flat_.split_shards(own, shard_axis_->rank());
  for (size_t i = 0; i < parts.size(); ++i) add_to(gradients_[i], parts[i]);
}

void FsdpUnit::abandon_step() {
  for (const ParameterPtr& parameter : parameters_) {
    parameter->tensor.mutable_grad() = at::Tensor();
  }
  kept_.assign(parameters_.size(), at::Tensor());
  gradients_.assign(parameters_.size(), at::Tensor());
  abandoned_ = reducing_.has_value();
  if (state_ == State::kWhole) reshard();
}

void FsdpUnit::settle() {
  reshard();
  if (abandoned_) finish_reduce();
}

std::vector<at::Tensor> FsdpUnit::take_gradients() {
  finish_reduce();
  std::vector<at::Tensor> taken(parameters_.size());
  for (size_t i = 0; i < taken.size(); ++i) {
    std::swap(taken[i], gradients_[i]);
    if (!taken[i].defined()) taken[i] = at::zeros_like(parameters_[i]->master);
  }
  return taken;
}

}  // namespace shardproof
