#include "sim/world/calls/faulty_backend.h"

#include <ATen/ATen.h>

#include <optional>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

namespace shardproof::sim {
namespace {

using TensorLists = std::vector<Tensors>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

class NothingDone final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// Changes the outputs when they have arrived.
class SpoiltWork final : public c10d::Work {
 public:
  SpoiltWork(WorkPtr inner, Tensors outputs,
             std::vector<std::function<void(const Tensors&)>> changes)
      : inner_(std::move(inner)), outputs_(std::move(outputs)), changes_(std::move(changes)) {}
  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool good = inner_->wait(timeout);
    for (const auto& change : std::exchange(changes_, {})) change(outputs_);
    return good;
  }

 private:
  WorkPtr inner_;
  Tensors outputs_;
  std::vector<std::function<void(const Tensors&)>> changes_;
};

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

class FaultyBackend final : public c10d::Backend, public CallSink {
 public:
  FaultyBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<NextCall> next)
      : c10d::Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        sink_(dynamic_cast<CallSink*>(inner_.get())),
        next_(std::move(next)) {}

  const std::string getBackendName() const override { return inner_->getBackendName(); }

  void next_call(CallNotes notes) override { notes_ = std::move(notes); }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return in_place(tensors, true, [&] { return inner_->allreduce(tensors, options); });
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return in_place(tensors, true, [&] { return inner_->broadcast(tensors, options); });
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override {
    Tensors sent = inputs;
    return moved(sent, flat(outputs), [&] { return inner_->allgather(outputs, sent, options); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override {
    Tensors sent{input};
    return moved(sent, {output}, [&] { return inner_->_allgather_base(output, sent[0], options); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return moved_lists(inputs, outputs, [&](TensorLists& sent) {
      return inner_->reduce_scatter(outputs, sent, options);
    });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    Tensors sent{input};
    return moved(sent, {output},
                 [&] { return inner_->_reduce_scatter_base(output, sent[0], options); });
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override {
    Tensors sent{input};
    return moved(sent, {output}, [&] {
      return inner_->alltoall_base(output, sent[0], output_splits, input_splits, options);
    });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override {
    Tensors sent = inputs;
    return moved(sent, outputs, [&] { return inner_->alltoall(outputs, sent, options); });
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override {
    Tensors sent = inputs;
    return moved(sent, flat(outputs), [&] { return inner_->gather(outputs, sent, options); });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override {
    return moved_lists(inputs, outputs,
                       [&](TensorLists& sent) { return inner_->scatter(outputs, sent, options); });
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    Tensors sent = tensors;
    return moved(sent, {}, [&] { return inner_->send(sent, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return in_place(tensors, false, [&] { return inner_->recv(tensors, from, tag); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    Tensors nothing;
    return in_place(nothing, false, [&] { return inner_->barrier(options); });
  }

 private:
  // The buffer is the output, and the input if the rank `sends`. The communicator owns it.
  template <class Make>
  WorkPtr in_place(const Tensors& tensors, bool sends, const Make& call) {
    const NextCall next = std::exchange(*next_, {});
    if (next.skip) return zeros(sends ? Tensors{} : tensors);
    for (const auto& change : next.on_input) change(tensors);
    return made(next, tensors, call);
  }

  // `sent` are the call's inputs; a change replaces them by copies.
  template <class Make>
  WorkPtr moved(Tensors& sent, const Tensors& outputs, const Make& call) {
    const NextCall next = std::exchange(*next_, {});
    if (next.skip) return zeros(outputs);
    if (!next.on_input.empty()) {
      for (at::Tensor& tensor : sent) tensor = tensor.clone();
      for (const auto& change : next.on_input) change(sent);
    }
    return made(next, outputs, call);
  }

  template <class Make>
  WorkPtr moved_lists(const TensorLists& inputs, const Tensors& outputs, const Make& call) {
    Tensors all = flat(inputs);
    return moved(all, outputs, [&] {
      TensorLists sent;
      size_t at = 0;
      for (const Tensors& list : inputs) {
        sent.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(at),
                          all.begin() + static_cast<std::ptrdiff_t>(at + list.size()));
        at += list.size();
      }
      return call(sent);
    });
  }

  template <class Make>
  WorkPtr made(const NextCall& next, const Tensors& outputs, const Make& call) {
    announce();
    WorkPtr work = call();
    if (next.again) {
      work->wait();
      next.again();
      announce();
      work = call();
    }
    notes_.reset();
    if (next.on_output.empty()) return work;
    return c10::make_intrusive<SpoiltWork>(std::move(work), outputs, next.on_output);
  }

  void announce() {
    if (sink_ != nullptr && notes_) sink_->next_call(*notes_);
  }

  WorkPtr zeros(const Tensors& outputs) {
    notes_.reset();
    for (const at::Tensor& output : outputs) output.zero_();
    return c10::make_intrusive<NothingDone>();
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  CallSink* sink_;
  std::shared_ptr<NextCall> next_;
  std::optional<CallNotes> notes_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_faulty_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                      std::shared_ptr<NextCall> next) {
  return c10::make_intrusive<FaultyBackend>(std::move(inner), std::move(next));
}

}  // namespace shardproof::sim
