// The linear product with a main gradient, deferral, and communication during computation.
#include "parallel/tp/async_linear.h"

#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::async_linear_test {
namespace {

constexpr int64_t kS = 12, kB = 2, kE = 5, kF = 24, kMicrobatches = 5;

struct Microbatches {
  std::vector<at::Tensor> x, grad, grad_x = {};  // full, one of each microbatch
  at::Tensor weight, grad_weight = {}, grad_bias = {};
};

// `uses` is the number of products of one weight in each microbatch.
Microbatches microbatches(at::ScalarType dtype = at::kDouble, int64_t uses = 1) {
  Microbatches golden{.x = {}, .grad = {}, .weight = random_tensor({kF, kE}, 1)};
  golden.weight = golden.weight.to(dtype).to(at::kDouble);
  const at::Tensor weight = golden.weight.clone().requires_grad_();
  const at::Tensor bias = at::zeros({kF}, at::kDouble).requires_grad_();
  for (int64_t i = 0; i < kMicrobatches; ++i) {
    golden.x.push_back(random_tensor({kS, kB, kE}, 10 + i).to(dtype).to(at::kDouble));
    golden.grad.push_back(random_tensor({kS, kB, kF}, 20 + i).to(dtype).to(at::kDouble));
    const at::Tensor x = golden.x.back().clone().requires_grad_();
    at::Tensor y = at::matmul(x, weight.t()) + bias;
    for (int64_t use = 1; use < uses; ++use) y = y + at::matmul(use * x.tanh(), weight.t());
    y.backward(golden.grad.back());
    golden.grad_x.push_back(x.grad());
  }
  golden.grad_weight = weight.grad();
  golden.grad_bias = bias.grad();
  return golden;
}

// A layer with a weight that has a main gradient, and with a bias of zeros.
struct Accumulating {
  ParameterPtr weight, bias;
  ColumnParallelLinear layer;
  at::Tensor operator()(const at::Tensor& x) { return run_tokens_first(layer, x); }
  MainGradient& main() { return *weight->main_gradient; }
};

Accumulating make_layer(const Microbatches& golden, Communicator& tp, bool sp,
                        const std::shared_ptr<DeferredWeightGradients>& deferred = {},
                        at::ScalarType dtype = at::kDouble) {
  const ParameterPtr weight = cut_parameter(golden.weight.to(dtype), 0, tp);
  const ParameterPtr bias = cut_parameter(at::zeros({kF}, weight->tensor.options()), 0, tp);
  const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
  weight->main_gradient = std::make_shared<MainGradient>(
      MainGradient{.sum = at::zeros(weight->tensor.sizes(), weight->tensor.options().dtype(wide))});
  return {weight, bias,
          ColumnParallelLinear(
              weight, bias, tp,
              {.label = "l", .sequence_parallel = sp, .async_grad = true, .deferred = deferred})};
}

at::Tensor own_x(const at::Tensor& x, bool sp, const Communicator& tp) {
  return sp ? part_at(x, 0, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size())) : x;
}

at::Tensor own_grad(const at::Tensor& grad, const Communicator& tp) {
  return part_at(grad, -1, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()));
}

TEST_CASE("a main gradient holds the sum over microbatches, the weight used once or twice",
          "[tp][TP-4]") {
  for (const int64_t uses : {1, 2}) {
    const Microbatches golden = microbatches(at::kDouble, uses);
    for (const bool sp : {false, true}) {
      on_every_group(
          {1, 2, 3, 4},
          [&](Communicator& tp) -> NamedResults {
            Accumulating layer = make_layer(golden, tp, sp);
            NamedResults results;
            for (size_t i = 0; i < kMicrobatches; ++i) {
              const at::Tensor x = own_x(golden.x[i], sp, tp).clone().requires_grad_();
              at::Tensor y = layer(x);
              if (uses == 2) {
                // The bias of the second call is subtracted again.
                y = y + layer(x.tanh()) - layer.bias->tensor;
              }
              y.backward(own_grad(golden.grad[i], tp));
              results["grad x" + std::to_string(i)] = x.grad();
            }
            results["main"] = layer.main().sum;
            results["bias"] = layer.bias->tensor.grad();
            const bool nothing_else = !layer.weight->tensor.grad().defined();
            results["nothing else"] = at::full({}, nothing_else);
            return results;
          },
          [&](const std::vector<NamedResults>& group) {
            for (size_t rank = 0; rank < group.size(); ++rank) {
              INFO("uses " << uses << (sp ? " sp" : "") << " tp=" << group.size());
              const auto own = [&](const at::Tensor& full) {
                return part_at(full, 0, rank, group.size());
              };
              CHECK(difference(own(golden.grad_weight), group[rank].at("main")) == "");
              CHECK(difference(own(golden.grad_bias), group[rank].at("bias")) == "");
              CHECK(group[rank].at("nothing else").item<bool>());
              for (size_t i = 0; i < kMicrobatches; ++i) {
                const at::Tensor grad_x = sp ? own(golden.grad_x[i]) : golden.grad_x[i];
                CHECK(difference(grad_x, group[rank].at("grad x" + std::to_string(i))) == "");
              }
            }
          });
    }
  }
}

TEST_CASE("a bfloat16 weight's main gradient is float32 and not rounded in between", "[tp][TP-4]") {
  const Microbatches golden = microbatches(at::kBFloat16);
  on_every_group(
      {1, 2},
      [&](Communicator& tp) -> NamedResults {
        Accumulating layer = make_layer(golden, tp, false, {}, at::kBFloat16);
        for (size_t i = 0; i < kMicrobatches; ++i) {
          layer(golden.x[i].to(at::kBFloat16))
              .backward(own_grad(golden.grad[i], tp).to(at::kBFloat16));
        }
        return {{"main", layer.main().sum}};
      },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          const at::Tensor main = group[rank].at("main");
          REQUIRE(main.scalar_type() == at::kFloat);
          // Inputs are exact in bfloat16, so all errors are roundings of float32.
          CHECK(difference(part_at(golden.grad_weight, 0, rank, group.size()), main.to(at::kDouble),
                           1e-5) == "");
        }
      });
}

TEST_CASE("deferred products without a buffer are summed in the wider type and rounded once",
          "[tp][TP-4]") {
  MeshComm alone(Mesh({{"tp", 1}}), 0, nullptr, nullptr);
  // Between 256 and 512, bfloat16 numbers are 2 apart: addends of 1 would be lost one by one.
  const auto one_by_one = [](double value) { return at::full({1, 1}, value, at::kBFloat16); };
  const at::Tensor weight = at::zeros({1, 1}, at::kBFloat16).requires_grad_();
  DeferredWeightGradients deferred;
  for (const double addend : {256, 1, 1, 1, 1}) {
    deferred.add({.input = one_by_one(1), .grad_output = one_by_one(addend)});
  }
  deferred.finish(weight, nullptr, alone.along("tp"), "deferred");
  CHECK(weight.grad().scalar_type() == at::kBFloat16);
  CHECK(weight.grad().item<double>() == 260);
  for (int i = 0; i < 4; ++i) {
    deferred.add({.input = one_by_one(1), .grad_output = one_by_one(1)});
  }
  deferred.finish(weight, nullptr, alone.along("tp"), "deferred");
  CHECK(weight.grad().item<double>() == 264);  // includes the earlier gradient
}

TEST_CASE("weight gradients deferred up to a limit, over more microbatches, in any order",
          "[tp][TP-4]") {
  const Microbatches golden = microbatches();
  for (const bool main : {true, false}) {
    for (const bool sp : {false, true}) {
      for (const int64_t limit : {0, 1, 3, 9}) {
        on_every_group(
            {1, 2, 3},
            [&](Communicator& tp) -> NamedResults {
              const auto deferred = std::make_shared<DeferredWeightGradients>(limit);
              Accumulating layer = make_layer(golden, tp, sp, deferred);
              if (!main) layer.weight->main_gradient.reset();
              // All forwards come first, as in a pipeline, and the backwards in another order.
              std::vector<at::Tensor> x, y;
              for (size_t i = 0; i < kMicrobatches; ++i) {
                x.push_back(own_x(golden.x[i], sp, tp).clone().requires_grad_());
                y.push_back(layer(x[i]));
              }
              NamedResults results;
              for (const size_t i : {3, 0, 4, 1, 2}) {
                y[i].backward(own_grad(golden.grad[i], tp));
                results["grad x" + std::to_string(i)] = x[i].grad();
              }
              results["kept"] = at::full({}, deferred->count());
              deferred->finish(layer.weight->tensor, layer.weight->main_gradient.get(), tp,
                               "embedding");
              results["left"] = at::full({}, deferred->count());
              results["weight"] = main ? layer.main().sum : layer.weight->tensor.grad();
              results["bias"] = layer.bias->tensor.grad();
              return results;
            },
            [&](const std::vector<NamedResults>& group) {
              for (size_t rank = 0; rank < group.size(); ++rank) {
                INFO("limit " << limit << (sp ? " sp" : "") << " tp=" << group.size());
                const auto own = [&](const at::Tensor& full) {
                  return part_at(full, 0, rank, group.size());
                };
                CHECK(group[rank].at("kept").item<int64_t>() ==
                      (limit == 0 ? kMicrobatches : std::min(limit, kMicrobatches)));
                CHECK(group[rank].at("left").item<int64_t>() == 0);
                CHECK(difference(own(golden.grad_weight), group[rank].at("weight")) == "");
                CHECK(difference(own(golden.grad_bias), group[rank].at("bias")) == "");
                for (size_t i = 0; i < kMicrobatches; ++i) {
                  const at::Tensor grad_x = sp ? own(golden.grad_x[i]) : golden.grad_x[i];
                  CHECK(difference(grad_x, group[rank].at("grad x" + std::to_string(i))) == "");
                }
              }
            });
      }
    }
  }
}

// A tied weight: the embedding adds a real gradient to .grad, the output layer a stand-in.
TEST_CASE("a hook that knows the contract finishes a tied weight's gradient", "[tp][TP-4]") {
  constexpr int64_t kV = 12;
  const at::Tensor full = random_tensor({kV, kE}, 1);
  const at::Tensor ids = at::arange(8, at::kLong).mul(5).remainder(kV).view({2, 4});
  const at::Tensor grad = random_tensor({2, 4, kV}, 2);
  const at::Tensor golden = full.clone().requires_grad_();
  for (int i = 0; i < 2; ++i) {
    at::matmul(golden.index({ids}).tanh(), golden.t()).backward(grad * (i + 1));
  }
  for (const bool zero_dummy : {true, false}) {
    on_every_group(
        {1, 2, 3},
        [&](Communicator& tp) -> NamedResults {
          const ParameterPtr shared = cut_parameter(full, 0, tp);
          const at::Tensor& weight = shared->tensor;
          const auto main = std::make_shared<MainGradient>(MainGradient{
              .sum = at::zeros_like(weight), .wants_dummy = true, .zero_dummy = zero_dummy});
          shared->main_gradient = main;
          VocabParallelEmbedding embedding(shared, tp, {.label = "embedding"});
          ColumnParallelLinear head(shared, nullptr, tp, {.label = "head"});
          bool told = true, stand_in_seen = true;
          for (int i = 0; i < 2; ++i) {
            const at::Tensor y = run_layer(head, run_layer(embedding, ids).tanh());
            y.backward(own_grad(grad * (i + 1), tp));
            told = told && main->added;
            stand_in_seen =
                stand_in_seen && weight.grad().isnan().all().item<bool>() == !zero_dummy;
            finish_main_gradient(weight, *main);
            told = told && !main->added && !weight.grad().defined();
          }
          return {{"main", main->sum},
                  {"told", at::full({}, told)},
                  {"stand-in", at::full({}, stand_in_seen)}};
        },
        [&](const std::vector<NamedResults>& group) {
          for (size_t rank = 0; rank < group.size(); ++rank) {
            const at::Tensor own = part_at(golden.grad(), 0, rank, group.size());
            const std::string wrong = difference(own, group[rank].at("main"));
            // Without zeros the hook ignores .grad, so the embedding's gradient is lost.
            CHECK((wrong == "") == zero_dummy);
            CHECK(group[rank].at("told").item<bool>());
            CHECK(group[rank].at("stand-in").item<bool>());
          }
        });
  }
}

TEST_CASE("without the mark autograd gets no gradient; a hook adds only what others gave",
          "[tp][TP-4]") {
  const Microbatches golden = microbatches();
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
    Accumulating layer = make_layer(golden, comm.along("tp"), false);
    MainGradient& main = layer.main();
    const at::Tensor& weight = layer.weight->tensor;
    layer(golden.x[0]).backward(own_grad(golden.grad[0], comm.along("tp")));
    const at::Tensor before = main.sum.clone();
    if (main.added || weight.grad().defined()) throw std::logic_error("a stand-in");
    weight.mutable_grad() = at::ones_like(weight);
    finish_main_gradient(weight, main);
    if (!main.sum.equal(before + 1)) throw std::logic_error("not added");
  });
}

TEST_CASE("sequence parallel beside an asynchronous all-reduce is refused, so is a frozen deferral",
          "[tp][TP-4]") {
  std::string both, frozen_both, deferral;
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor x = at::ones({4, 3}), weight = at::ones({6, 3});
    const AsyncLinearOptions two{
        .label = "l", .reduce_input_gradient = true, .sequence_parallel = true};
    const AsyncLinearOptions defers{.label = "l",
                                    .deferred = std::make_shared<DeferredWeightGradients>(1)};
    const std::string a = said_by([&] { async_linear(x, weight, {}, tp, two); });
    const std::string b = said_by([&] { frozen_linear(x, weight, {}, tp, two); });
    const std::string c = said_by([&] { frozen_linear(x, weight, {}, tp, defers); });
    if (rank == 0) both = a, frozen_both = b, deferral = c;
  });
  CHECK(contains(both, "refused: 'l' sets reduce_input_gradient and sequence_parallel"));
  CHECK(both == frozen_both);
  CHECK(contains(deferral, "frozen weight and defers"));
}

TEST_CASE("a linear's backward after its communicator has ended is an error", "[tp][TP-4]") {
  for (const auto& linear : {async_linear, frozen_linear}) {
    const auto said = backward_after_the_end(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
      return linear(at::ones({4, 3}).requires_grad_(), at::ones({2, 3}), {}, comm.along("tp"),
                    {.reduce_input_gradient = true});
    });
    for (const std::string& text : said) {
      CHECK_THAT(text, Catch::Contains("the communicator brief.tp[0,1] has ended"));
    }
  }
}

}  // namespace
}  // namespace shardproof::tests::async_linear_test
