// The bookkeeping of calls, and the calls that only move data from or to one rank.
#include "comm/communicator.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "comm/call_sink.h"
#include "comm/pending_collective.h"
#include "comm/wire.h"
#include "tensor/dtype_name.h"

namespace shardproof {
namespace {

using Tensors = std::vector<at::Tensor>;

Error wrong_sizes(Op op, const std::string& group, std::string_view label,
                  const std::string& problem) {
  return Error(
      {.kind = ErrorKind::kFailed,
       .what = fmt::format("{} {} '{}': {}", op, group, label, problem),
       .fix = "give every member the same list of sizes, one per rank, that fits its tensor",
       .code = "threw"});
}

std::vector<int64_t> with_rows(const at::Tensor& like, int64_t rows) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.at(0) = rows;
  return shape;
}

}  // namespace

BackendAbilities BackendAbilities::of(Backend backend) {
  switch (backend) {
    case Backend::kEmulated:
      return {.uneven_lists = true,
              .reduce_scatter = true,
              .avg = true,
              .half_sums = true,
              .empty = true};
    case Backend::kNccl:
      return {.reduce_scatter = true, .half_sums = true};
    case Backend::kGloo:
      return {};
  }
  return {};
}

Communicator::Communicator(std::string axis, std::vector<int64_t> ranks, int64_t group_rank,
                           c10::intrusive_ptr<c10d::Backend> backend, CallListener* listener)
    : axis_(std::move(axis)),
      ranks_(std::move(ranks)),
      group_rank_(group_rank),
      backend_(std::move(backend)),
      listener_(listener) {
  SHARDPROOF_ASSERT(group_rank_ >= 0 && group_rank_ < size(), "a rank of this group");
  SHARDPROOF_ASSERT(size() == 1 || backend_, "a group of several ranks needs a backend");
  group_ = group_name(axis_, ranks_);
  handle_target_ =
      std::make_shared<CommunicatorHandle::Target>(CommunicatorHandle::Target{this, group_});
  shared_ranks_ = std::make_shared<const std::vector<int64_t>>(ranks_);
  if (!backend_) return;
  sink_ = dynamic_cast<CallSink*>(backend_.get());
  // Any other backend can do at least what Gloo can.
  abilities_ =
      BackendAbilities::of(find_enum<Backend>(backend_->getBackendName()).value_or(Backend::kGloo));
}

Communicator::~Communicator() { handle_target_->communicator = nullptr; }

Call Communicator::new_call(Op op, const at::Tensor& tensor, std::string_view label) const {
  Call call;
  call.group = group_;
  call.op = op;
  call.label = label;
  call.rank = ranks_[static_cast<size_t>(group_rank_)];
  call.group_rank = group_rank_;
  call.group_ranks = shared_ranks_;
  if (!tensor.defined()) return call;
  call.dtype = dtype_name(tensor.scalar_type());
  call.shape = tensor.sizes().vec();
  call.strides = tensor.strides().vec();
  call.bytes = tensor.numel() * static_cast<int64_t>(tensor.element_size());
  return call;
}

PendingCollective Communicator::start(Call call, CallMode mode, const StartWork& work,
                                      Finish finish) {
  int64_t& sequence = is_message(call.op)
                          ? channel_sequence_[fmt::format("{} {} {}", call.op, call.root, call.tag)]
                          : sequence_;
  call.sequence = sequence++;
  call.asynchronous = mode.asynchronous;
  if (listener_ != nullptr) listener_->before_call(call);
  if (sink_ != nullptr) {
    sink_->next_call({.call = call,
                      .private_input = mode.private_input,
                      .private_output = mode.private_output,
                      .input = mode.input});
  }
  auto state = std::make_unique<PendingCollective::State>();
  state->call = std::move(call);
  state->listener = listener_;
  state->finish = std::move(finish);
  run_backend_call(state->call, [&] { state->work = work(); });
  return PendingCollective(std::move(state));
}

PendingCollective Communicator::finished(at::Tensor result) const {
  auto state = std::make_unique<PendingCollective::State>();
  state->finish = [result = std::move(result)] { return result; };
  return PendingCollective(std::move(state));
}

std::vector<int64_t> Communicator::checked_sizes(const std::vector<int64_t>& sizes, int64_t own,
                                                 Op op, std::string_view label) const {
  const auto count = static_cast<int64_t>(sizes.size());
  if (count != size()) {
    throw wrong_sizes(op, group_, label, fmt::format("{} sizes for {} ranks", count, size()));
  }
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t value) { return value < 0; })) {
    throw wrong_sizes(op, group_, label, fmt::format("sizes [{}]", fmt::join(sizes, ",")));
  }
  const int64_t mine = sizes[static_cast<size_t>(group_rank_)];
  if (own >= 0 && own != mine) {
    throw wrong_sizes(
        op, group_, label,
        fmt::format("rank {} has size {} where the sizes [{}] say {}",
                    ranks_[static_cast<size_t>(group_rank_)], own, fmt::join(sizes, ","), mine));
  }
  return sizes;
}

std::vector<int64_t> Communicator::even_sizes(int64_t total, Op op, std::string_view label) const {
  if (total % size() != 0) {
    throw_refused(fmt::format("{} {} '{}': size {} does not split into {} even parts", op, group_,
                              label, total, size()),
                  fmt::format("give the sizes of the parts, or pad to {}",
                              (total + size() - 1) / size() * size()));
  }
  return std::vector<int64_t>(static_cast<size_t>(size()), total / size());
}

void Communicator::check_root(int64_t root) const {
  SHARDPROOF_ASSERT(root >= 0 && root < size(), "the other rank is a member of the group");
}

at::Tensor Communicator::broadcast(const at::Tensor& tensor, int64_t root, std::string_view label) {
  check_root(root);
  const at::NoGradGuard no_grad;
  const at::Tensor given = tensor.detach();
  const at::Tensor result = group_rank_ == root || !backend_
                                ? given.clone(at::MemoryFormat::Contiguous)
                                : at::empty(given.sizes(), given.options());
  broadcast_into(result, root, label);
  return result;
}

void Communicator::broadcast_into(const at::Tensor& tensor, int64_t root, std::string_view label) {
  check_root(root);
  SHARDPROOF_ASSERT(tensor.is_contiguous(), "a dense tensor is written in place");
  if (!backend_) return;
  const at::NoGradGuard no_grad;
  Call call = new_call(Op::kBroadcast, tensor, label);
  call.root = root;
  const at::Tensor moving = wire::for_moving(*backend_, tensor);
  const bool nothing = moving.numel() == 0 && !abilities_.empty;
  const at::Tensor buffer = nothing ? at::zeros({1}, moving.options()) : moving;
  const auto work = [&] {
    Tensors buffers{buffer};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    return backend_->broadcast(buffers, options);
  };
  const auto finish = [tensor, moving] {
    if (moving.device() != tensor.device()) {
      tensor.detach().copy_(wire::moved_back(moving, tensor.options()));
    }
    return tensor;
  };
  start(std::move(call), {.private_input = true}, work, finish).wait();
}

at::Tensor Communicator::scatter(const at::Tensor& full, const at::Tensor& local_like, int64_t root,
                                 std::string_view label, const std::vector<int64_t>& sizes) {
  check_root(root);
  const at::NoGradGuard no_grad;
  const bool is_root = group_rank_ == root;
  std::vector<int64_t> rows;
  if (!sizes.empty()) rows = checked_sizes(sizes, local_like.size(0), Op::kScatter, label);
  if (is_root && rows.empty()) rows = even_sizes(full.size(0), Op::kScatter, label);
  if (is_root && c10::sum_integers(rows) != full.size(0)) {
    throw wrong_sizes(
        Op::kScatter, group_, label,
        fmt::format("sizes [{}] of a tensor of {} rows", fmt::join(rows, ","), full.size(0)));
  }
  if (!backend_) return full.detach().clone(at::MemoryFormat::Contiguous);
  Call call = new_call(Op::kScatter, local_like, label);
  call.root = root;
  if (is_root) call.split_sizes = rows;
  const at::Tensor source =
      is_root
          ? wire::for_moving(*backend_, full)
          : wire::for_moving(*backend_, at::empty(with_rows(local_like, 0), local_like.options()));
  at::Tensor result = at::empty(local_like.sizes(), source.options());
  const auto work = [&] {
    if (abilities_.uneven_lists) {
      Tensors outputs{result};
      std::vector<Tensors> inputs;
      if (is_root) inputs.push_back(source.split_with_sizes(rows, 0));
      c10d::ScatterOptions options;
      options.rootRank = root;
      return backend_->scatter(outputs, inputs, options);
    }
    std::vector<int64_t> from(static_cast<size_t>(size()), 0);
    from[static_cast<size_t>(root)] = local_like.size(0);
    std::vector<int64_t> to = is_root ? rows : std::vector<int64_t>(static_cast<size_t>(size()), 0);
    at::Tensor input = source;
    return backend_->alltoall_base(result, input, from, to, {});
  };
  const auto finish = [result, like = local_like.options()] {
    return wire::moved_back(result, like);
  };
  return start(std::move(call), {}, work, finish).wait();
}

at::Tensor Communicator::gather(const at::Tensor& local, int64_t root, std::string_view label,
                                const std::vector<int64_t>& sizes) {
  check_root(root);
  const at::NoGradGuard no_grad;
  const bool is_root = group_rank_ == root;
  const std::vector<int64_t> rows =
      sizes.empty() ? std::vector<int64_t>(static_cast<size_t>(size()), local.size(0))
                    : checked_sizes(sizes, local.size(0), Op::kGather, label);
  if (!backend_) return local.detach().clone(at::MemoryFormat::Contiguous);
  Call call = new_call(Op::kGather, local, label);
  call.root = root;
  if (is_root) call.split_sizes = rows;
  const at::Tensor source = wire::for_moving(*backend_, local);
  at::Tensor result =
      at::empty(with_rows(local, is_root ? c10::sum_integers(rows) : 0), source.options());
  const auto work = [&] {
    if (abilities_.uneven_lists) {
      Tensors inputs{source};
      std::vector<Tensors> outputs;
      if (is_root) outputs.push_back(result.split_with_sizes(rows, 0));
      c10d::GatherOptions options;
      options.rootRank = root;
      return backend_->gather(outputs, inputs, options);
    }
    std::vector<int64_t> to(static_cast<size_t>(size()), 0);
    to[static_cast<size_t>(root)] = local.size(0);
    std::vector<int64_t> from =
        is_root ? rows : std::vector<int64_t>(static_cast<size_t>(size()), 0);
    at::Tensor input = source;
    return backend_->alltoall_base(result, input, from, to, {});
  };
  const auto finish = [result, is_root, like = local.options()] {
    return is_root ? wire::moved_back(result, like) : at::Tensor();
  };
  return start(std::move(call), {}, work, finish).wait();
}

PendingCollective Communicator::start_message(Op op, const at::Tensor& tensor, int64_t other,
                                              std::string_view label, int tag, bool asynchronous) {
  check_root(other);
  SHARDPROOF_ASSERT(other != group_rank_, "a rank sends no message to itself");
  const at::NoGradGuard no_grad;
  Call call = new_call(op, tensor, label);
  call.root = other;
  call.tag = tag;
  const bool sends = call.op == Op::kSend;
  const at::Tensor moving = wire::for_moving(*backend_, tensor);
  const at::Tensor result = sends ? moving : at::empty_like(moving);
  const bool nothing = result.numel() == 0 && !abilities_.empty;
  const at::Tensor buffer = nothing ? at::zeros({1}, result.options()) : result;
  const auto work = [&] {
    Tensors buffers{buffer.view({-1})};
    const int peer = static_cast<int>(other);
    return sends ? backend_->send(buffers, peer, tag) : backend_->recv(buffers, peer, tag);
  };
  // The backend reads or writes the buffer until wait() returns.
  const auto finish = [result, buffer, sends, like = tensor.options()] {
    return sends ? at::Tensor() : wire::moved_back(result, like);
  };
  return start(std::move(call),
               {.asynchronous = asynchronous, .input = sends ? tensor : at::Tensor()}, work,
               finish);
}

void Communicator::send(const at::Tensor& tensor, int64_t to, std::string_view label, int tag) {
  start_message(Op::kSend, tensor, to, label, tag, false).wait();
}

at::Tensor Communicator::recv(const at::Tensor& like, int64_t from, std::string_view label,
                              int tag) {
  return start_message(Op::kRecv, like, from, label, tag, false).wait();
}

PendingCollective Communicator::send_async(const at::Tensor& tensor, int64_t to,
                                           std::string_view label, int tag) {
  return start_message(Op::kSend, tensor, to, label, tag, true);
}

PendingCollective Communicator::recv_async(const at::Tensor& like, int64_t from,
                                           std::string_view label, int tag) {
  return start_message(Op::kRecv, like, from, label, tag, true);
}

std::vector<PendingCollective> Communicator::send_recv_async(const at::Tensor& sent, int64_t to,
                                                             int64_t from, std::string_view label,
                                                             int tag) {
  const bool together = backend_ && backend_->supportsCoalescing();
  if (together) backend_->startCoalescing();
  std::vector<PendingCollective> both;
  both.push_back(recv_async(sent, from, label, tag));
  both.push_back(send_async(sent, to, label, tag));
  if (!together) return both;
  const Call& call = both[0].state_->call;
  c10::intrusive_ptr<c10d::Work> work;
  run_backend_call(call, [&] { work = backend_->endCoalescing(); });
  for (PendingCollective& one : both) one.state_->work = work;
  return both;
}

void Communicator::barrier(std::string_view label) {
  if (!backend_) return;
  const auto work = [&] { return backend_->barrier({}); };
  start(new_call(Op::kBarrier, at::Tensor(), label), {}, work, {}).wait();
}

}  // namespace shardproof
