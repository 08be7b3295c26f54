// The linear product with a main gradient, deferral, and communication during computation. The
// values of whole models with them are those of scenarios/tp/options.yaml and
// scenarios/train/main_gradients.yaml.
#include "parallel/tp/async_linear.h"

#include <catch2/catch.hpp>

#include "parallel/tp/column_parallel.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::async_linear_test {
namespace {

constexpr int64_t kS = 12, kB = 2, kE = 5, kF = 24, kMicrobatches = 5;

// A weight that each of some microbatches uses twice, and its gradient on one device.
struct Microbatches {
  std::vector<at::Tensor> x, grad;
  at::Tensor weight, grad_weight;
};

// All values are exact in `dtype`.
Microbatches microbatches(at::ScalarType dtype) {
  const auto drawn = [dtype](at::IntArrayRef shape, int64_t seed) {
    return random_tensor(shape, seed).to(dtype).to(at::kDouble);
  };
  Microbatches golden{.x = {}, .grad = {}, .weight = drawn({kF, kE}, 1), .grad_weight = {}};
  const at::Tensor weight = golden.weight.clone().requires_grad_();
  for (int64_t i = 0; i < kMicrobatches; ++i) {
    golden.x.push_back(drawn({kB, kS, kE}, 10 + i));
    golden.grad.push_back(drawn({kB, kS, kF}, 20 + i));
    const at::Tensor& x = golden.x.back();
    (at::linear(x, weight) + at::linear(2 * x, weight)).backward(golden.grad.back());
  }
  golden.grad_weight = weight.grad();
  return golden;
}

struct Gradients {
  bool main = true, sequence_parallel = false;
  std::shared_ptr<DeferredWeightGradients> deferred = {};
  at::ScalarType dtype = at::kDouble;
};

// The gradient of this rank's part of the weight. `kept` gets the number of products that wait.
at::Tensor weight_gradient(const Microbatches& golden, const Gradients& options, Communicator& tp,
                           int64_t* kept = nullptr) {
  const ParameterPtr weight = cut_parameter(golden.weight.to(options.dtype), 0, tp);
  const at::Tensor& own = weight->tensor;
  const auto wide = options.dtype == at::kDouble ? at::kDouble : at::kFloat;
  if (options.main) {
    weight->main_gradient = std::make_shared<MainGradient>(
        MainGradient{.sum = at::zeros(own.sizes(), own.options().dtype(wide))});
  }
  ColumnParallelLinear layer(weight, nullptr, tp,
                             {.label = "l",
                              .sequence_parallel = options.sequence_parallel,
                              .async_grad = true,
                              .deferred = options.deferred});
  // All forwards come first, as in a pipeline, and the backwards in another order.
  std::vector<at::Tensor> y;
  for (const at::Tensor& full : golden.x) {
    const at::Tensor x = options.sequence_parallel ? own_part(full, 1, tp) : full;
    y.push_back(run_layer(layer, x.to(options.dtype)) +
                run_layer(layer, (2 * x).to(options.dtype)));
  }
  for (const size_t i : {3, 0, 4, 1, 2}) {
    y[i].backward(own_part(golden.grad[i], -1, tp).to(options.dtype));
  }
  if (kept != nullptr) *kept = options.deferred->count();
  if (options.deferred != nullptr) {
    options.deferred->finish(own, weight->main_gradient.get(), tp, "deferred");
  }
  if (options.main && own.grad().defined()) throw std::logic_error("a second gradient");
  return options.main ? weight->main_gradient->sum : own.grad();
}

TEST_CASE("a bfloat16 weight's main gradient is float32 and not rounded in between", "[tp][TP-4]") {
  const Microbatches golden = microbatches(at::kBFloat16);
  const auto results = on_every_rank(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
    const Gradients options{.dtype = at::kBFloat16};
    return NamedResults{{"main", weight_gradient(golden, options, comm.along("tp"))}};
  });
  for (int64_t rank = 0; rank < 2; ++rank) {
    const at::Tensor main = results[static_cast<size_t>(rank)].at("main");
    REQUIRE(main.scalar_type() == at::kFloat);
    // Inputs are exact in bfloat16, so all errors are roundings of float32.
    CHECK(difference(part_at(golden.grad_weight, 0, rank, 2), main.to(at::kDouble), 1e-5) == "");
  }
}

TEST_CASE("weight gradients deferred up to a limit, over more microbatches, in any order",
          "[tp][TP-4]") {
  constexpr int64_t kProducts = 2 * kMicrobatches;
  const Microbatches golden = microbatches(at::kDouble);
  for (const bool main : {true, false}) {
    for (const bool sp : {false, true}) {
      for (const int64_t limit : {0, 1, 3, 99}) {
        INFO("limit " << limit << (sp ? " sp" : "") << (main ? " main" : ""));
        std::vector<int64_t> kept(3), left(3);
        const auto results = on_every_rank(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
          const auto own = static_cast<size_t>(rank);
          const auto deferred = std::make_shared<DeferredWeightGradients>(limit);
          const Gradients options{.main = main, .sequence_parallel = sp, .deferred = deferred};
          const at::Tensor sum = weight_gradient(golden, options, comm.along("tp"), &kept[own]);
          left[own] = deferred->count();
          return NamedResults{{"weight", sum}};
        });
        for (size_t rank = 0; rank < 3; ++rank) {
          CHECK(kept[rank] == (limit == 0 ? kProducts : std::min(limit, kProducts)));
          CHECK(left[rank] == 0);
          const at::Tensor own = part_at(golden.grad_weight, 0, static_cast<int64_t>(rank), 3);
          CHECK(difference(own, results[rank].at("weight")) == "");
        }
      }
    }
  }
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

// A backward that adds to the main gradient leaves a stand-in in .grad, if the weight is marked.
// What another use of the weight adds to .grad is lost if the stand-in is not a number.
TEST_CASE("a hook adds to the main gradient what others gave, but no stand-in", "[tp][TP-4]") {
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
    const auto check = [](bool holds, const char* what) {
      if (!holds) throw std::logic_error(what);
    };
    for (const auto& [marked, zeros] :
         std::vector<std::pair<bool, bool>>{{false, false}, {true, true}, {true, false}}) {
      const ParameterPtr weight = leaf("w", at::ones({2, 5}, at::kDouble));
      weight->main_gradient = std::make_shared<MainGradient>(MainGradient{
          .sum = at::zeros({2, 5}, at::kDouble), .wants_dummy = marked, .zero_dummy = zeros});
      MainGradient& main = *weight->main_gradient;
      ColumnParallelLinear layer(weight, nullptr, comm.along("tp"), {.label = "l"});
      run_layer(layer, at::ones({1, 6, 5}, at::kDouble)).sum().backward();
      check(main.sum.equal(at::full({2, 5}, 6.0, at::kDouble)), "the sum");
      check(main.added == marked, "the hook is told");
      const at::Tensor grad = weight->tensor.grad();
      check(grad.defined() == marked, "a stand-in where there is a mark");
      if (marked) check(grad.equal(at::zeros_like(grad)) == zeros, "zeros");
      if (marked) check(grad.isnan().all().item<bool>() == !zeros, "no numbers");
      weight->tensor.mutable_grad() = marked ? grad + 1 : at::ones_like(weight->tensor);
      finish_main_gradient(weight->tensor, main);
      const double more = marked && !zeros ? 0 : 1;
      check(main.sum.equal(at::full({2, 5}, 6.0 + more, at::kDouble)), "what others gave");
      check(!main.added && !weight->tensor.grad().defined(), "the end");
    }
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
