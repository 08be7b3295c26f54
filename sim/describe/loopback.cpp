#include "sim/describe/loopback.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace shardproof::sim::describe {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

class DoneWork final : public c10d::Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

WorkPtr done() { return c10::make_intrusive<DoneWork>(); }

class LoopbackBackend final : public c10d::Backend {
 public:
  using Backend::Backend;
  // Communicators choose the calls that they make by this name.
  const std::string getBackendName() const override { return "emulated"; }

  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return done(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    if (options.rootRank != rank_) tensors[0].zero_();
    return done();
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions&) override {
    for (at::Tensor& output : outputs[0]) {
      if (output.sizes() == inputs[0].sizes()) {
        output.copy_(inputs[0]);
      } else {
        output.zero_();
      }
    }
    return done();
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions&) override {
    output.view({size_, -1}).copy_(input.view({1, -1}));
    return done();
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions&) override {
    outputs[0].copy_(inputs[0][static_cast<size_t>(rank_)]);
    return done();
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    output.view({-1}).copy_(input.view({size_, -1})[rank_]);
    return done();
  }

  // Every other rank sends what this one sends, where that has the right size: sizes that ranks
  // exchange must fit.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&,
                        std::vector<int64_t>&, const c10d::AllToAllOptions&) override {
    if (output.sizes() == input.sizes()) {
      output.copy_(input);
    } else {
      output.zero_();
    }
    return done();
  }

  WorkPtr send(Tensors&, int, int) override { return done(); }

  WorkPtr recv(Tensors& tensors, int, int) override {
    tensors[0].zero_();
    return done();
  }
};

}  // namespace

BackendFactory loopback_factory(int64_t rank) {
  return [rank](const std::string&, const std::vector<int64_t>& ranks) {
    const auto own = std::find(ranks.begin(), ranks.end(), rank) - ranks.begin();
    return c10::make_intrusive<LoopbackBackend>(static_cast<int>(own),
                                                static_cast<int>(ranks.size()));
  };
}

}  // namespace shardproof::sim::describe
