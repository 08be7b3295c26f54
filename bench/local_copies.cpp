#include "bench/local_copies.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardproof::bench {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class Done : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

// Copies as many elements as fit and fills the rest with zeros.
void fill_from(const at::Tensor& output, const at::Tensor& input) {
  const int64_t count = std::min(output.numel(), input.numel());
  if (!output.is_contiguous()) {
    output.zero_();
    return;
  }
  const at::Tensor flat = output.view({-1});
  flat.narrow(0, 0, count).copy_(input.reshape({-1}).narrow(0, 0, count));
  flat.narrow(0, count, output.numel() - count).zero_();
}

class LocalCopies : public c10d::Backend {
 public:
  using Backend::Backend;

  // With this name communicators expect every operation and compose none from others.
  const std::string getBackendName() const override { return "emulated"; }

  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return done(); }
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return done(); }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return done(); }
  WorkPtr send(Tensors&, int, int) override { return done(); }
  WorkPtr recv(Tensors& tensors, int, int) override {
    for (const at::Tensor& tensor : tensors) tensor.zero_();
    return done();
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    for (const at::Tensor& part : output.view({-1}).chunk(size_)) fill_from(part, input);
    return done();
  }
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    for (const at::Tensor& part : outputs[0]) fill_from(part, inputs[0]);
    return done();
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    fill_from(output, input);
    return done();
  }
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions&) override {
    fill_from(outputs[0], inputs[0][static_cast<size_t>(rank_)]);
    return done();
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                        std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    fill_from(output, input);
    return done();
  }
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs,
                 const c10d::GatherOptions&) override {
    for (const Tensors& list : outputs) {
      for (const at::Tensor& part : list) fill_from(part, inputs[0]);
    }
    return done();
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                  const c10d::ScatterOptions&) override {
    fill_from(outputs[0], inputs.empty() ? at::Tensor(outputs[0]) : inputs[0][0]);
    return done();
  }

 private:
  static WorkPtr done() { return c10::make_intrusive<Done>(); }
};

}  // namespace

BackendFactory local_copies(int64_t rank) {
  return [rank](const std::string&, const std::vector<int64_t>& ranks) {
    const auto found = std::find(ranks.begin(), ranks.end(), rank);
    return c10::intrusive_ptr<c10d::Backend>(c10::make_intrusive<LocalCopies>(
        static_cast<int>(found - ranks.begin()), static_cast<int>(ranks.size())));
  };
}

}  // namespace shardproof::bench
