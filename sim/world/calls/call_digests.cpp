// A backend that hashes the inputs before a call and the outputs after it.
#include "sim/world/calls/call_digests.h"

#include <ATen/ATen.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "base/digest.h"
#include "comm/call_sink.h"
#include "sim/world/clock/rank_clock.h"

namespace shardproof::sim {
namespace {

using DigestTensors = std::vector<at::Tensor>;
using DigestLists = std::vector<DigestTensors>;
using DigestWorkPtr = c10::intrusive_ptr<c10d::Work>;
using Sides = CallDigests::Sides;

uint64_t bytes_digest(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = (tensor.is_cpu() ? tensor : tensor.cpu()).contiguous();
  return digest_of(here.data_ptr(), here.nbytes());
}

std::vector<uint64_t> digests_of_sides(const Sides& sides) {
  std::vector<uint64_t> digests;
  for (const at::Tensor& tensor : sides.tensors) digests.push_back(bytes_digest(tensor));
  if (!sides.together || digests.size() < 2) return digests;
  return {digest_of(digests.data(), digests.size() * sizeof(uint64_t))};
}

// The parts of a tensor along dim 0: of `rows` sizes, or `count` equal ones.
Sides parts_of(const at::Tensor& tensor, const std::vector<int64_t>& rows, int64_t count) {
  const at::NoGradGuard no_grad;
  if (!rows.empty()) return {.tensors = tensor.split_with_sizes(rows, 0)};
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {.tensors = flat.split_with_sizes(
              std::vector<int64_t>(static_cast<size_t>(count), flat.numel() / count))};
}

class DigestedWork final : public c10d::Work {
 public:
  DigestedWork(DigestWorkPtr inner, std::function<void()> arrived)
      : inner_(std::move(inner)), arrived_(std::move(arrived)) {}
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool good = inner_->wait(timeout);
    if (auto arrived = std::exchange(arrived_, {})) arrived();
    return good;
  }

 private:
  DigestWorkPtr inner_;
  std::function<void()> arrived_;
};

class DigestingBackend final : public c10d::Backend, public CallSink {
 public:
  DigestingBackend(c10::intrusive_ptr<c10d::Backend> inner, CallDigests* digests)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        sink_(dynamic_cast<CallSink*>(inner_.get())),
        digests_(digests) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  void next_call(CallNotes notes) override {
    call_ = notes.call;
    if (sink_ != nullptr) sink_->next_call(std::move(notes));
  }

  DigestWorkPtr allreduce(DigestTensors& tensors, const c10d::AllreduceOptions& options) override {
    return told("all_reduce", -1, {}, all(tensors),
                [&] { return inner_->allreduce(tensors, options); });
  }
  DigestWorkPtr broadcast(DigestTensors& tensors, const c10d::BroadcastOptions& options) override {
    const bool is_root = options.rootRank == rank_;
    return told("broadcast", options.rootRank, is_root ? all(tensors) : Sides(),
                is_root ? Sides() : all(tensors),
                [&] { return inner_->broadcast(tensors, options); });
  }
  DigestWorkPtr allgather(DigestLists& outputs, DigestTensors& inputs,
                          const c10d::AllgatherOptions& options) override {
    return told("all_gather", -1, all(inputs), each(outputs),
                [&] { return inner_->allgather(outputs, inputs, options); });
  }
  DigestWorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                                const c10d::AllgatherOptions& options) override {
    return told("all_gather", -1, all({input}), parts_of(output, {}, size_),
                [&] { return inner_->_allgather_base(output, input, options); });
  }
  DigestWorkPtr reduce_scatter(DigestTensors& outputs, DigestLists& inputs,
                               const c10d::ReduceScatterOptions& options) override {
    return untold([&] { return inner_->reduce_scatter(outputs, inputs, options); });
  }
  DigestWorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                     const c10d::ReduceScatterOptions& options) override {
    return untold([&] { return inner_->_reduce_scatter_base(output, input, options); });
  }
  DigestWorkPtr alltoall_base(at::Tensor& output, at::Tensor& input,
                              std::vector<int64_t>& output_rows, std::vector<int64_t>& input_rows,
                              const c10d::AllToAllOptions& options) override {
    return told(
        "all_to_all", -1, parts_of(input, input_rows, size_), parts_of(output, output_rows, size_),
        [&] { return inner_->alltoall_base(output, input, output_rows, input_rows, options); });
  }
  DigestWorkPtr alltoall(DigestTensors& outputs, DigestTensors& inputs,
                         const c10d::AllToAllOptions& options) override {
    return told("all_to_all", -1, {.tensors = inputs}, {.tensors = outputs},
                [&] { return inner_->alltoall(outputs, inputs, options); });
  }
  DigestWorkPtr gather(DigestLists& outputs, DigestTensors& inputs,
                       const c10d::GatherOptions& options) override {
    return told("gather", -1, all(inputs), options.rootRank == rank_ ? each(outputs) : Sides(),
                [&] { return inner_->gather(outputs, inputs, options); });
  }
  DigestWorkPtr scatter(DigestTensors& outputs, DigestLists& inputs,
                        const c10d::ScatterOptions& options) override {
    return told("scatter", options.rootRank, options.rootRank == rank_ ? each(inputs) : Sides(),
                all(outputs), [&] { return inner_->scatter(outputs, inputs, options); });
  }
  DigestWorkPtr send(DigestTensors& tensors, int to, int tag) override {
    return told("send", to, all(tensors), {}, [&] { return inner_->send(tensors, to, tag); });
  }
  DigestWorkPtr recv(DigestTensors& tensors, int from, int tag) override {
    return told("recv", from, {}, all(tensors), [&] { return inner_->recv(tensors, from, tag); });
  }
  DigestWorkPtr barrier(const c10d::BarrierOptions& options) override {
    return untold([&] { return inner_->barrier(options); });
  }

 private:
  static Sides all(const DigestTensors& tensors) { return {.tensors = tensors, .together = true}; }
  static Sides each(const DigestLists& lists) {
    return {.tensors = lists.empty() ? DigestTensors() : lists[0]};
  }

  template <class Make>
  DigestWorkPtr untold(const Make& call) {
    call_.reset();
    return call();
  }

  // The outputs are the caller's memory and are hashed when wait() has returned.
  template <class Make>
  DigestWorkPtr told(const char* op, int64_t root, const Sides& inputs, const Sides& outputs,
                     const Make& call) {
    if (!call_) return call();
    const Call made = *std::exchange(call_, std::nullopt);
    const size_t number = digests_->sent({.op = op,
                                          .group = made.group,
                                          .ranks = *made.group_ranks,
                                          .place = rank_,
                                          .sequence = made.sequence,
                                          .root = root,
                                          .tag = made.tag,
                                          .call = describe(made)},
                                         inputs);
    return c10::make_intrusive<DigestedWork>(
        call(), [digests = digests_, number, outputs] { digests->received(number, outputs); });
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  CallSink* sink_;
  CallDigests* digests_;
  std::optional<Call> call_;  // describes the next backend call
};

}  // namespace

BackendFactory CallDigests::wrap(BackendFactory factory) {
  return [factory = std::move(factory), this](
             const std::string& name,
             const std::vector<int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<DigestingBackend>(factory(name, ranks), this);
  };
}

size_t CallDigests::sent(CallDigest call, const Sides& inputs) {
  const ClockPause pause(clock_);
  call.step = step_;
  call.sent = digests_of_sides(inputs);
  calls_.push_back(std::move(call));
  done_.push_back(false);
  return calls_.size() - 1;
}

void CallDigests::received(size_t number, const Sides& outputs) {
  const ClockPause pause(clock_);
  calls_[number].received = digests_of_sides(outputs);
  done_[number] = true;
}

std::vector<CallDigest> CallDigests::take() {
  std::vector<CallDigest> whole;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (done_[i]) whole.push_back(std::move(calls_[i]));
  }
  calls_.clear();
  done_.clear();
  return whole;
}

}  // namespace shardproof::sim
