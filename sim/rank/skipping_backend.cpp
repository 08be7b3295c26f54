#include "sim/rank/skipping_backend.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "comm/call_sink.h"

namespace shardproof::sim {
namespace {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class NothingDone final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

class SkippingBackend final : public c10d::Backend, public CallSink {
 public:
  SkippingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<bool> skip_next)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        sink_(dynamic_cast<CallSink*>(inner_.get())),
        skip_next_(std::move(skip_next)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  void next_call(CallNotes notes) override {
    if (sink_ != nullptr && !*skip_next_) sink_->next_call(std::move(notes));
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return skips() ? nothing() : inner_->allreduce(tensors, options);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return skips() ? nothing() : inner_->broadcast(tensors, options);
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return skips() ? zeros(outputs) : inner_->allgather(outputs, inputs, options);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return skips() ? zeros(output) : inner_->_allgather_base(output, input, options);
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return skips() ? zeros(outputs) : inner_->reduce_scatter(outputs, inputs, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return skips() ? zeros(output) : inner_->_reduce_scatter_base(output, input, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    return skips() ? zeros(output)
                   : inner_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return skips() ? zeros(outputs) : inner_->alltoall(outputs, inputs, options);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return skips() ? zeros(outputs) : inner_->gather(outputs, inputs, options);
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    return skips() ? zeros(outputs) : inner_->scatter(outputs, inputs, options);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return skips() ? nothing() : inner_->send(tensors, to, tag);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return skips() ? zeros(tensors) : inner_->recv(tensors, from, tag);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return skips() ? nothing() : inner_->barrier(options);
  }

 private:
  bool skips() { return std::exchange(*skip_next_, false); }
  static WorkPtr nothing() { return c10::make_intrusive<NothingDone>(); }
  static WorkPtr zeros(at::Tensor& output) {
    output.zero_();
    return nothing();
  }
  static WorkPtr zeros(Tensors& outputs) {
    for (at::Tensor& output : outputs) output.zero_();
    return nothing();
  }
  static WorkPtr zeros(TensorLists& outputs) {
    for (Tensors& list : outputs) zeros(list);
    return nothing();
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  CallSink* sink_;
  std::shared_ptr<bool> skip_next_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_skipping_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                        std::shared_ptr<bool> skip_next) {
  return c10::make_intrusive<SkippingBackend>(std::move(inner), std::move(skip_next));
}

}  // namespace shardproof::sim
