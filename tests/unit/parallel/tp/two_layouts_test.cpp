// Losses, main gradients and checkpoints on two groups of different size and
// layout in one process, both in use: the first's backward comes after the second's forward. Each
// gives, put together, what it gives on groups of one rank.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/spread_activation.h"
#include "random/checkpoint_without_output.h"
#include "tests/unit/logprob/worlds.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::two_layouts_test {
namespace {

constexpr int64_t kS = 6, kB = 2, kE = 5, kV = 12;

struct Data {
  at::Tensor x = random_tensor({kS, kB, kE}, 1), weight = random_tensor({kV, kE}, 2);
  at::Tensor grad = random_tensor({kS, kB, kV}, 3), down = random_tensor({kE, kV}, 4);
  at::Tensor logits = random_tensor({kS, kV}, 5) * 9;
  at::Tensor target = at::arange(kS, at::kLong).mul(5).remainder(kV);
};

// What is left after a forward: it gives the results, whole.
using Rest = std::function<NamedResults()>;
using Start = Rest (*)(const Data&, Communicator&);

at::Tensor whole(const at::Tensor& part, int64_t dim, Communicator& group) {
  return group.all_gather(part.detach(), dim, "whole");
}

Rest start_loss(const Data& data, Communicator& group) {
  const at::Tensor logits = own_part(data.logits, 1, group).requires_grad_();
  const at::Tensor loss =
      vocab_parallel_cross_entropy(logits, data.target, group, kV, {.label_smoothing = 0.2});
  return [=, &group]() -> NamedResults {
    loss.backward(data.x.select(1, 0).select(1, 0));
    return {{"loss", loss.detach()}, {"grad logits", whole(logits.grad(), 1, group)}};
  };
}

Rest start_main_gradient(const Data& data, Communicator& group) {
  const auto deferred = std::make_shared<DeferredWeightGradients>(1);
  const ParameterPtr weight = cut_parameter(data.weight, 0, group);
  weight->main_gradient =
      std::make_shared<MainGradient>(MainGradient{.sum = at::zeros_like(weight->tensor.detach())});
  const auto layer = std::make_shared<ColumnParallelLinear>(
      weight, nullptr, group,
      ColumnParallelLinear::Options{.label = "l",
                                    .sequence_parallel = true,
                                    .gather_buffer = std::make_shared<GatherBuffer>(),
                                    .deferred = deferred});
  const at::Tensor x = own_part(data.x, 0, group).requires_grad_();
  const at::Tensor first = run_tokens_first(*layer, x), second = run_tokens_first(*layer, x * 2);
  return [=, &group]() -> NamedResults {
    static_cast<void>(layer);  // keeps the layer's buffer
    second.backward(own_part(data.grad, -1, group));
    first.backward(own_part(data.grad, -1, group));
    deferred->finish(weight->tensor, weight->main_gradient.get(), group, "deferred");
    return {{"main", whole(weight->main_gradient->sum, 0, group)},
            {"grad x", whole(x.grad(), 0, group)}};
  };
}

// W2 tanh(W1 x), recomputed, with its input spread over the group; a norm that saves no output.
Rest start_checkpoint(const Data& data, Communicator& group) {
  const auto spread = std::make_shared<SpreadActivation>(group, "spread");
  const at::Tensor x = data.x.clone().requires_grad_();
  const at::Tensor up = own_part(data.weight, 0, group).requires_grad_();
  const at::Tensor down = own_part(data.down, 1, group).requires_grad_();
  const CheckpointBody body = [=, &group](const std::vector<at::Tensor>& in) {
    const at::Tensor region = copy_with_all_reduce_backward(in[0], group, "block");
    const at::Tensor sum = at::linear(at::linear(region, up).tanh(), down);
    return std::vector<at::Tensor>{all_reduce_with_identity_backward(sum, group, "block")};
  };
  const at::Tensor y = x + checkpoint(body, {x}, nullptr, {.first_input = spread.get()})[0];
  const CheckpointBody sigmoid = [](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{in[0].sigmoid()};
  };
  CheckpointWithoutOutput norm;
  const at::Tensor z = at::linear(norm.run(sigmoid, {y}, nullptr)[0], data.weight);
  norm.discard_outputs_until(z);
  return [=, &group]() -> NamedResults {
    static_cast<void>(spread);
    z.backward(data.grad);
    return {{"z", z.detach()},
            {"checkpoint x", x.grad()},
            {"checkpoint up", whole(up.grad(), 0, group)},
            {"checkpoint down", whole(down.grad(), 1, group)}};
  };
}

// The results of each axis. All forwards come first.
NamedResults all_of(const Data& data, MeshComm& comm) {
  std::vector<std::pair<std::string, Rest>> started;
  for (const Start start : {start_loss, start_main_gradient, start_checkpoint}) {
    for (const std::string axis : {"outer", "inner"}) {
      started.emplace_back(axis, start(data, comm.along(axis)));
    }
  }
  NamedResults results;
  for (const auto& [axis, rest] : started) {
    for (const auto& [name, tensor] : rest()) results[axis + " " + name] = tensor;
  }
  return results;
}

TEST_CASE("two groups of different layout keep to their own, both in flight",
          "[tp][TP-4][TP-5][RN-3][RN-4][SH-2]") {
  const Data data;
  const auto work = [&](MeshComm& comm, int64_t) { return all_of(data, comm); };
  const NamedResults golden = on_every_rank(Mesh({{"outer", 1}, {"inner", 1}}), work)[0];
  CHECK(golden.size() == 2 * 8);
  for (const World world : {World::kEmulated, World::kGloo}) {
    // outer groups {0,2,4}, {1,3,5}; inner {0,1}, {2,3}, {4,5}
    for (const auto& own : on_every_rank_of(world, Mesh({{"outer", 3}, {"inner", 2}}), work)) {
      for (const auto& [name, tensor] : golden) {
        INFO(name);
        CHECK(difference(tensor, own.at(name)) == "");
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::two_layouts_test
