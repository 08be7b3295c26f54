#include "sim/world/calls/interceptor.h"

#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "comm/call_sink.h"

namespace shardproof::sim::world {
namespace {

using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Arrivals = std::vector<std::function<void()>>;

// Null `inner`: nothing was done.
class InterceptedWork final : public c10d::Work {
 public:
  InterceptedWork(WorkPtr inner, Arrivals arrivals)
      : inner_(std::move(inner)), arrivals_(std::move(arrivals)) {}
  bool isCompleted() override { return !inner_ || inner_->isCompleted(); }
  bool isSuccess() const override { return !inner_ || inner_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool good = !inner_ || inner_->wait(timeout);
    const Arrivals arrivals = std::exchange(arrivals_, {});
    for (auto arrived = arrivals.rbegin(); arrived != arrivals.rend(); ++arrived) {
      if (*arrived) (*arrived)();
    }
    return good;
  }

 private:
  WorkPtr inner_;
  Arrivals arrivals_;
};

CallSide all(const Tensors& tensors) { return {.tensors = tensors, .together = true}; }

Tensors first(const TensorLists& lists) { return lists.empty() ? Tensors() : lists[0]; }

CallSide each(const TensorLists& lists) { return {.tensors = first(lists)}; }

// The parts of a tensor along dim 0: of `rows` sizes, or `count` equal ones.
CallSide parts_of(const at::Tensor& tensor, const std::vector<int64_t>& rows, int64_t count) {
  const at::NoGradGuard no_grad;
  if (!rows.empty()) return {.tensors = tensor.split_with_sizes(rows, 0)};
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {.tensors = flat.split_with_sizes(
              std::vector<int64_t>(static_cast<size_t>(count), flat.numel() / count))};
}

class InterceptedBackend final : public c10d::Backend, public CallSink {
 public:
  InterceptedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::vector<Interceptor> interceptors)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        sink_(dynamic_cast<CallSink*>(inner_.get())),
        interceptors_(std::move(interceptors)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  void next_call(CallNotes notes) override { notes_ = std::move(notes); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return make({.inputs = tensors, .outputs = tensors, .in_place = true, .received = all(tensors)},
                [&](Tensors&) { return inner_->allreduce(tensors, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    CallInProgress call{.inputs = tensors, .outputs = tensors, .in_place = true};
    (options.rootRank == rank_ ? call.sent : call.received) = all(tensors);
    return make(std::move(call), [&](Tensors&) { return inner_->broadcast(tensors, options); });
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    return make({.inputs = inputs,
                 .outputs = first(outputs),
                 .sent = all(inputs),
                 .received = each(outputs)},
                [&](Tensors& sent) { return inner_->allgather(outputs, sent, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    return make({.inputs = {input},
                 .outputs = {output},
                 .sent = all({input}),
                 .received = parts_of(output, {}, size_)},
                [&](Tensors& sent) { return inner_->_allgather_base(output, sent[0], options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return make({.inputs = first(inputs), .outputs = outputs}, [&](Tensors& sent) {
      TensorLists lists{sent};
      return inner_->reduce_scatter(outputs, lists, options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return make({.inputs = {input}, .outputs = {output}}, [&](Tensors& sent) {
      return inner_->_reduce_scatter_base(output, sent[0], options);
    });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_rows,
                        std::vector<int64_t>& input_rows,
                        const c10d::AllToAllOptions& options) override {
    return make({.inputs = {input},
                 .outputs = {output},
                 .sent = parts_of(input, input_rows, size_),
                 .received = parts_of(output, output_rows, size_)},
                [&](Tensors& sent) {
                  return inner_->alltoall_base(output, sent[0], output_rows, input_rows, options);
                });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    return make({.inputs = inputs, .outputs = outputs, .sent = {inputs}, .received = {outputs}},
                [&](Tensors& sent) { return inner_->alltoall(outputs, sent, options); });
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    return make({.inputs = inputs,
                 .outputs = first(outputs),
                 .sent = all(inputs),
                 .received = each(outputs)},
                [&](Tensors& sent) { return inner_->gather(outputs, sent, options); });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    return make({.inputs = first(inputs),
                 .outputs = outputs,
                 .sent = each(inputs),
                 .received = all(outputs)},
                [&](Tensors& sent) {
                  TensorLists lists;
                  if (!inputs.empty()) lists.push_back(sent);
                  return inner_->scatter(outputs, lists, options);
                });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return make({.inputs = tensors, .sent = all(tensors)},
                [&](Tensors& sent) { return inner_->send(sent, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return make({.outputs = tensors, .received = all(tensors)},
                [&](Tensors&) { return inner_->recv(tensors, from, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return make({}, [&](Tensors&) { return inner_->barrier(options); });
  }

 private:
  // Of a broadcast, which is in place, the others have nothing of their own.
  static bool is_received(const std::optional<Call>& call) {
    return call && call->op == Op::kBroadcast && call->root != call->group_rank;
  }

  template <class Post>
  WorkPtr make(CallInProgress call, const Post& post) {
    const std::optional<CallNotes> notes = std::exchange(notes_, std::nullopt);
    if (notes) call.call = notes->call;
    Arrivals arrivals;
    for (const Interceptor& interceptor : interceptors_) arrivals.push_back(interceptor(call));
    const auto post_once = [&] {
      if (sink_ != nullptr && notes) sink_->next_call(*notes);
      return post(call.inputs);
    };
    WorkPtr work;
    if (!call.skip) {
      work = post_once();
    } else if (!call.in_place || is_received(call.call)) {
      for (const at::Tensor& output : call.outputs) output.zero_();
    }
    if (call.again) {
      work->wait();
      call.again();
      work = post_once();
    }
    return c10::make_intrusive<InterceptedWork>(std::move(work), std::move(arrivals));
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  CallSink* sink_;
  std::vector<Interceptor> interceptors_;
  std::optional<CallNotes> notes_;  // of the next call
};

}  // namespace

BackendFactory intercepted(BackendFactory factory, std::vector<Interceptor> interceptors) {
  return [factory = std::move(factory), interceptors = std::move(interceptors)](
             const std::string& name,
             const std::vector<int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    return c10::make_intrusive<InterceptedBackend>(factory(name, ranks), interceptors);
  };
}

}  // namespace shardproof::sim::world
