// Losses, main gradients and checkpoints on two groups of different size and
// layout in one process, both in use: the first's backward comes after the second's forward.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/spread_activation.h"
#include "random/checkpoint_without_output.h"
#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::two_layouts_test {
namespace {

constexpr int64_t kS = 6, kB = 2, kE = 5, kV = 12;
// outer groups {0,2,4}, {1,3,5}; inner {0,1}, {2,3}, {4,5}
const char* const kAxes[] = {"outer", "inner"};

struct Data {
  at::Tensor x = random_tensor({kS, kB, kE}, 1), weight = random_tensor({kV, kE}, 2);
  at::Tensor grad = random_tensor({kS, kB, kV}, 3), grad_x = random_tensor({kS, kB, kE}, 4);
  at::Tensor logits = random_tensor({kS, kV}, 5) * 9;
  at::Tensor target = at::arange(kS, at::kLong).mul(5).remainder(kV);
  at::Tensor grad_loss = random_tensor({kS}, 7), down = random_tensor({kE, kV}, 8);
};

at::Tensor own_part(const at::Tensor& full, int64_t dim, const Communicator& group) {
  return part_at(full, dim, static_cast<size_t>(group.rank()), static_cast<size_t>(group.size()));
}

// A group's rank after its forward; `backward` returns the results.
struct Started {
  std::function<NamedResults()> backward;
};

Started start_loss(const Data& data, Communicator& group) {
  const at::Tensor own = own_part(data.logits, 1, group).clone().requires_grad_();
  const at::Tensor loss =
      vocab_parallel_cross_entropy(own, data.target, group, kV, {.label_smoothing = 0.2});
  return {[=]() -> NamedResults {
    loss.backward(data.grad_loss);
    return {{"loss", loss.detach()}, {"grad logits", own.grad()}};
  }};
}

Started start_main_gradient(const Data& data, Communicator& group) {
  const auto deferred = std::make_shared<DeferredWeightGradients>(1);
  const ParameterPtr weight = cut_parameter(data.weight, 0, group);
  weight->main_gradient =
      std::make_shared<MainGradient>(MainGradient{.sum = at::zeros_like(weight->tensor.detach())});
  const auto layer = std::make_shared<ColumnParallelLinear>(
      weight, nullptr, group,
      ColumnParallelLinear::Options{.label = "main gradient",
                                    .sequence_parallel = true,
                                    .gather_buffer = std::make_shared<GatherBuffer>(),
                                    .deferred = deferred});
  const at::Tensor x = own_part(data.x, 0, group).clone().requires_grad_();
  const at::Tensor first = run_tokens_first(*layer, x), second = run_tokens_first(*layer, x * 2);
  return {[=, &group]() -> NamedResults {
    static_cast<void>(layer);  // keeps the layer's buffer
    second.backward(own_part(data.grad, -1, group));
    first.backward(own_part(data.grad, -1, group));
    deferred->finish(weight->tensor, weight->main_gradient.get(), group, "deferred");
    return {{"main", weight->main_gradient->sum}, {"grad x", x.grad()}};
  }};
}

// y = W2 tanh(W1 x), recomputed, with its input spread over the group; a norm that saves no output.
Started start_checkpoint(const Data& data, Communicator& group) {
  const auto spread = std::make_shared<SpreadActivation>(group, "spread");
  const at::Tensor x = data.x.clone().requires_grad_();
  const at::Tensor up = own_part(data.weight, 0, group).clone().requires_grad_();
  const at::Tensor down = own_part(data.down, 1, group).clone().requires_grad_();
  const auto body = [=, &group](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor region = copy_with_all_reduce_backward(in[0], group, "block");
    const at::Tensor sum = at::linear(at::linear(region, up).tanh(), down);
    return {all_reduce_with_identity_backward(sum, group, "block")};
  };
  const at::Tensor y = checkpoint(body, {x}, nullptr, {.first_input = spread.get()})[0];
  CheckpointWithoutOutput norm;
  const at::Tensor normed = norm.run(
      [](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
        return {in[0].sigmoid()};
      },
      {y}, nullptr)[0];
  const at::Tensor z = at::linear(normed, data.weight);
  norm.discard_outputs_until(z);
  return {[=]() -> NamedResults {
    static_cast<void>(spread);
    z.backward(data.grad);
    return {{"z", z.detach()}, {"ck x", x.grad()}, {"ck up", up.grad()}, {"ck down", down.grad()}};
  }};
}

using Start = Started (*)(const Data&, Communicator&);
const Start kStarts[] = {start_loss, start_main_gradient, start_checkpoint};

// Results of each axis under "<axis> name": forwards come first, then backwards in another order.
NamedResults all_of(const Data& data, MeshComm& comm) {
  std::vector<std::pair<std::string, Started>> started;
  for (const Start start : kStarts) {
    for (const char* axis : kAxes) started.emplace_back(axis, start(data, comm.along(axis)));
  }
  NamedResults results;
  for (const auto& [axis, work] : started) {
    for (const auto& [name, tensor] : work.backward()) results[axis + " " + name] = tensor;
  }
  return results;
}

struct Golden {
  NamedResults full;
  std::map<std::string, int64_t> dims;  // that a group cuts; other tensors are whole
};

Golden plain_all(const Data& data) {
  Golden golden;
  NamedResults& full = golden.full;
  const at::Tensor logits = data.logits.clone().requires_grad_();
  const at::Tensor logp = at::log_softmax(logits, -1);
  const double share = 0.2 * kV / (kV - 1);
  const at::Tensor loss =
      -(1 - share) * logp.gather(1, data.target.unsqueeze(1)).squeeze(1) - share * logp.mean(-1);
  loss.backward(data.grad_loss);
  full["loss"] = loss.detach();
  full["grad logits"] = logits.grad();
  full["main"] = 3 * data.grad.flatten(0, 1).t().matmul(data.x.flatten(0, 1));
  full["grad x"] = 3 * data.grad.matmul(data.weight);
  const at::Tensor x = data.x.clone().requires_grad_();
  const at::Tensor up = data.weight.clone().requires_grad_();
  const at::Tensor down = data.down.clone().requires_grad_();
  const at::Tensor y = at::linear(at::linear(x, up).tanh(), down);
  const at::Tensor z = at::linear(y.sigmoid(), data.weight);
  z.backward(data.grad);
  full["z"] = z.detach();
  full["ck x"] = x.grad();
  full["ck up"] = up.grad();
  full["ck down"] = down.grad();
  golden.dims = {{"grad logits", 1}, {"main", 0}, {"grad x", 0}, {"ck up", 0}, {"ck down", 1}};
  return golden;
}

TEST_CASE("two groups of different layout keep to their own, both in flight",
          "[tp][TP-4][TP-5][RN-3][RN-4][SH-2]") {
  const Data data;
  const Golden golden = plain_all(data);
  const Mesh mesh({{"outer", 3}, {"inner", 2}});
  const auto work = [&](MeshComm& comm, int64_t) { return all_of(data, comm); };
  for (const auto& results : {on_every_rank(mesh, work), on_every_gloo_rank(mesh, work)}) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      for (const char* axis : kAxes) {
        for (const auto& [name, full] : golden.full) {
          INFO(axis << " " << name << " rank " << rank);
          const auto cut = golden.dims.find(name);
          const at::Tensor own =
              cut == golden.dims.end()
                  ? full
                  : part_at(full, cut->second, static_cast<size_t>(mesh.coordinate(axis, rank)),
                            static_cast<size_t>(mesh.size(axis)));
          const auto& result = results[static_cast<size_t>(rank)];
          CHECK(difference(own, result.at(std::string(axis) + " " + name)) == "");
        }
      }
    }
  }
}

// Each group's streams draw equal masks outside of its region and different ones inside.
TEST_CASE("dropouts of two groups in one process draw from their own streams", "[tp][RN-1][RN-2]") {
  const at::Tensor x = at::ones({4, 6}, at::kDouble);
  const Mesh mesh({{"outer", 3}, {"inner", 2}});
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t) {
    NamedResults result;
    std::vector<std::unique_ptr<RngTracker>> trackers;
    for (const char* axis : kAxes) {
      const Communicator& group = comm.along(axis);
      trackers.push_back(std::make_unique<RngTracker>());
      seed_streams(*trackers.back(), 100 * group.size(),
                   {.tp_rank = group.rank(), .tp_size = group.size()});
    }
    for (const HeldOverTp held : {HeldOverTp::kAlike, HeldOverTp::kParts}) {
      for (size_t i = 0; i < 2; ++i) {
        const std::string name =
            std::string(kAxes[i]) + (held == HeldOverTp::kAlike ? " alike" : " parts");
        result[name] = region_dropout(x, 0.5, held, *trackers[i], name);
      }
    }
    return result;
  });
  for (int64_t a = 0; a < mesh.world_size(); ++a) {
    for (int64_t b = 0; b < a; ++b) {
      const NamedResults &one = results[static_cast<size_t>(a)],
                         &other = results[static_cast<size_t>(b)];
      for (const char* axis : kAxes) {
        const bool same_place = mesh.coordinate(axis, a) == mesh.coordinate(axis, b);
        const std::string name = axis;
        CHECK(one.at(name + " alike").equal(other.at(name + " alike")));
        CHECK(one.at(name + " parts").equal(other.at(name + " parts")) == same_place);
      }
    }
    const NamedResults& own = results[static_cast<size_t>(a)];
    CHECK_FALSE(own.at("outer alike").equal(own.at("inner alike")));
    CHECK_FALSE(own.at("outer parts").equal(own.at("inner parts")));
  }
}

}  // namespace
}  // namespace shardproof::tests::two_layouts_test
