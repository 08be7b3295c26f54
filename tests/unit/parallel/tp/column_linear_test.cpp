// The column-parallel linear layer with each of its options against one device.
#include "parallel/tp/column_linear.h"

#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::column_linear_test {
namespace {

constexpr int64_t kS = 12, kB = 3, kE = 5, kF = 24;  // [S, B, E] -> [S, B, F]; 1 to 4 ranks divide

struct ColumnGolden {
  at::Tensor x, weight, bias, grad, y = {}, y_without_bias = {};
  at::Tensor grad_x = {}, grad_weight = {}, grad_bias = {};
};

ColumnGolden column_golden() {
  ColumnGolden golden{.x = random_tensor({kS, kB, kE}, 1),
                      .weight = random_tensor({kF, kE}, 2),
                      .bias = random_tensor({kF}, 3),
                      .grad = random_tensor({kS, kB, kF}, 4)};
  const at::Tensor x = golden.x.clone().requires_grad_();
  const at::Tensor weight = golden.weight.clone().requires_grad_();
  const at::Tensor bias = golden.bias.clone().requires_grad_();
  const at::Tensor y = at::matmul(x, weight.t());
  golden.y_without_bias = y.detach();
  const at::Tensor with_bias = y + bias;
  with_bias.backward(golden.grad);
  golden.y = with_bias.detach();
  golden.grad_x = x.grad();
  golden.grad_weight = weight.grad();
  golden.grad_bias = bias.grad();
  return golden;
}

ColumnLinear::Options column_options(const ColumnGolden& golden) {
  return {.input_size = kE,
          .output_size = kF,
          .dtype = at::kDouble,
          .init = filled_with(golden.weight)};
}

void set_bias(ColumnLinear& layer, const ColumnGolden& golden, const Communicator& tp) {
  const at::NoGradGuard no_grad;
  layer.bias()->tensor.copy_(
      own_blocks(golden.bias, 0, layer.bias()->blocks, tp.rank(), tp.size()));
}

// Strides reversed, so that nothing gets away with a contiguous tensor.
at::Tensor leaf_with_strides(const at::Tensor& values) {
  return values.permute({2, 1, 0}).contiguous().permute({2, 1, 0}).requires_grad_();
}

// How a variant of the layer is called, and where its output lies.
struct ColumnVariant {
  std::string name;
  std::function<void(ColumnLinear::Options&)> options = [](ColumnLinear::Options&) {};
  ColumnLinear::Call call = {};
  bool gathered = false;
};

NamedResults run_column(const ColumnGolden& golden, const ColumnVariant& variant,
                        Communicator& tp) {
  ColumnLinear::Options options = column_options(golden);
  variant.options(options);
  ColumnLinear layer(options, tp);
  if (layer.bias()) set_bias(layer, golden, tp);
  const auto rank = static_cast<size_t>(tp.rank()), size = static_cast<size_t>(tp.size());
  const bool sp = layer.sequence_parallel();
  const at::Tensor x = leaf_with_strides(sp ? part_at(golden.x, 0, rank, size) : golden.x);
  const auto [y, bias] = layer.forward(x, variant.call);
  const auto& blocks = layer.weight()->blocks;
  const at::Tensor whole = bias.defined() && variant.gathered
                               ? all_gather_with_slice_backward(bias, tp, 0, "bias")
                               : bias;
  const at::Tensor total =
      bias.defined()
          ? y + in_full_order(whole, -1, variant.gathered ? blocks : std::vector<int64_t>{1},
                              tp.size())
          : y;
  total.backward(variant.gathered ? golden.grad : part_at(golden.grad, -1, rank, size, blocks));
  NamedResults results = {{"y", total.detach()}, {"grad x", x.grad()}};
  if (layer.weight()->tensor.grad().defined()) {
    results["grad weight"] = layer.weight()->tensor.grad();
  }
  if (layer.bias()) results["grad bias"] = layer.bias()->tensor.grad();
  return results;
}

void check_column(const ColumnVariant& variant, const std::vector<int64_t>& blocks = {kF}) {
  const ColumnGolden golden = column_golden();
  on_every_group(
      {1, 2, 3, 4}, [&](Communicator& tp) { return run_column(golden, variant, tp); },
      [&](const std::vector<NamedResults>& group) {
        ColumnLinear::Options options = column_options(golden);
        variant.options(options);
        const at::Tensor y = options.bias ? golden.y : golden.y_without_bias;
        for (size_t rank = 0; rank < group.size(); ++rank) {
          INFO(variant.name << " tp=" << group.size() << " rank " << rank);
          const auto own = [&](const at::Tensor& full, int64_t dim) {
            return part_at(full, dim, rank, group.size(), blocks);
          };
          const bool sp = options.sequence_parallel && group.size() > 1;
          CHECK(difference(variant.gathered ? y : own(y, -1), group[rank].at("y")) == "");
          CHECK(difference(sp ? part_at(golden.grad_x, 0, rank, group.size()) : golden.grad_x,
                           group[rank].at("grad x")) == "");
          if (options.frozen) {
            CHECK(group[rank].count("grad weight") == 0);
          } else {
            CHECK(difference(own(golden.grad_weight, 0), group[rank].at("grad weight")) == "");
          }
          if (options.bias) {
            CHECK(difference(own(golden.grad_bias, 0), group[rank].at("grad bias")) == "");
          }
        }
      });
}

TEST_CASE("ColumnLinear with each option is the plain layer", "[tp][TP-1]") {
  using Options = ColumnLinear::Options;
  check_column({.name = "plain"});
  check_column({.name = "no bias", .options = [](Options& o) { o.bias = false; }});
  check_column({.name = "skip_bias_add", .options = [](Options& o) { o.skip_bias_add = true; }});
  check_column(
      {.name = "sequence parallel", .options = [](Options& o) { o.sequence_parallel = true; }});
  check_column({.name = "gathered",
                .options = [](Options& o) { o.gather_output = true; },
                .gathered = true});
  check_column({.name = "gathered, skip_bias_add",
                .options = [](Options& o) { o.gather_output = o.skip_bias_add = true; },
                .gathered = true});
  check_column({.name = "gathered, at run time not",
                .options = [](Options& o) { o.gather_output = true; },
                .call = {.gather_output = false}});
  check_column({.name = "not gathered, at run time gathered",
                .call = {.gather_output = true},
                .gathered = true});
}

TEST_CASE(
    "ColumnLinear with a frozen weight still reduces its input's gradient, and trains its bias",
    "[tp][TP-4]") {
  using Options = ColumnLinear::Options;
  check_column({.name = "frozen", .options = [](Options& o) { o.frozen = true; }});
  check_column({.name = "frozen, sequence parallel",
                .options = [](Options& o) { o.frozen = o.sequence_parallel = true; }});
}

TEST_CASE("ColumnLinear with a fused output: each block cut, gathered in the full order",
          "[tp][TP-1]") {
  using Options = ColumnLinear::Options;
  check_column({.name = "stride 2", .options = [](Options& o) { o.stride = 2; }}, {12, 12});
  check_column({.name = "stride 2, gathered",
                .options = [](Options& o) { o.stride = 2, o.gather_output = true; },
                .gathered = true},
               {12, 12});
}

TEST_CASE("ColumnLinear with a fused q, k, v: unequal blocks", "[tp][TP-1]") {
  const ColumnGolden golden = column_golden();
  const std::vector<int64_t> blocks = {12, 6, 6};  // heads q 6, k 3, v 3 of size 2
  const auto make = [&](ColumnLinear::Options& o) { o.blocks = blocks; };
  on_every_group(
      {1, 2, 3},
      [&](Communicator& tp) { return run_column(golden, {.name = "qkv", .options = make}, tp); },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          const auto own = [&](const at::Tensor& full, int64_t dim) {
            return part_at(full, dim, rank, group.size(), blocks);
          };
          CHECK(difference(own(golden.y, -1), group[rank].at("y")) == "");
          CHECK(difference(own(golden.grad_weight, 0), group[rank].at("grad weight")) == "");
          CHECK(difference(golden.grad_x, group[rank].at("grad x")) == "");
        }
      });
}

TEST_CASE("disable_grad_reduce leaves the input's gradient to the caller, who sums two at once",
          "[tp][TP-1]") {
  const ColumnGolden golden = column_golden();
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& tp) -> NamedResults {
        ColumnLinear::Options options = column_options(golden);
        options.disable_grad_reduce = true;
        options.bias = false;
        ColumnLinear first(options, tp), second(options, tp);
        const at::Tensor x = golden.x.clone().requires_grad_();
        const at::Tensor shared = copy_with_all_reduce_backward(x, tp, "both");
        const at::Tensor y = first.forward(shared).output + 3 * second.forward(shared).output;
        y.backward(part_at(golden.grad, -1, static_cast<size_t>(tp.rank()),
                           static_cast<size_t>(tp.size())));
        return {{"grad x", x.grad()}};
      },
      [&](const std::vector<NamedResults>& group) {
        for (const auto& result : group) {
          CHECK(difference(4 * golden.grad_x, result.at("grad x")) == "");
        }
      });
}

TEST_CASE("ColumnLinear calls: one reduction behind the weight gradient, none without need",
          "[tp][TP-4]") {
  const ColumnGolden golden = column_golden();
  const auto calls_of = [&](const std::function<void(ColumnLinear::Options&)>& change,
                            bool input_needs_gradient) {
    std::vector<CallLog> logs(2);
    const RankRuns runs = try_emulated_ranks(
        Mesh({{"tp", 2}}),
        [&](MeshComm& comm, int64_t rank) {
          ColumnLinear::Options options = column_options(golden);
          options.label = "l";
          change(options);
          ColumnLinear layer(options, comm.along("tp"));
          const at::Tensor x =
              layer.sequence_parallel() ? golden.x.narrow(0, rank * 6, 6) : golden.x;
          layer.forward(x.clone().requires_grad_(input_needs_gradient)).output.sum().backward();
        },
        {&logs[0], &logs[1]});
    CHECK(runs.error_text(0) == "");
    return logs[0].calls;
  };
  using Calls = std::vector<std::string>;
  CHECK(calls_of([](auto&) {}, true) == Calls{"all_reduce l backward"});
  CHECK(calls_of([](auto&) {}, false).empty());
  CHECK(calls_of([](auto& o) { o.disable_grad_reduce = true; }, true).empty());
  CHECK(calls_of([](auto& o) { o.expert = true; }, true).empty());
  CHECK(calls_of([](auto& o) { o.sequence_parallel = true; }, true) ==
        Calls{"all_gather l forward", "all_gather l regather", "reduce_scatter l backward"});
  CHECK(calls_of([](auto& o) { o.sequence_parallel = o.frozen = true; }, true) ==
        Calls{"all_gather l forward", "reduce_scatter l backward"});
}

TEST_CASE("an external weight is used, checked, and gets its gradient", "[tp][TP-1]") {
  const ColumnGolden golden = column_golden();
  on_every_group(
      {1, 2, 4},
      [&](Communicator& tp) -> NamedResults {
        ColumnLinear::Options options = column_options(golden);
        options.external_weight = true;
        ColumnLinear layer(options, tp);
        set_bias(layer, golden, tp);
        const auto rank = static_cast<size_t>(tp.rank()), size = static_cast<size_t>(tp.size());
        const at::Tensor weight = part_at(golden.weight, 0, rank, size).clone().requires_grad_();
        const auto y = layer.forward(golden.x, {.weight = weight}).output;
        y.backward(part_at(golden.grad, -1, rank, size));
        const std::string none = said_by([&] { layer.forward(golden.x); });
        const std::string shape =
            said_by([&] { layer.forward(golden.x, {.weight = golden.weight.t()}); });
        const bool right = contains(none, "has no weight of its own") &&
                           contains(shape, "weight of shape [5,24], not [" +
                                               std::to_string(24 / tp.size()) + ",5]");
        return {{"y", y.detach()}, {"grad", weight.grad()}, {"said", at::full({}, right)}};
      },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          CHECK(difference(part_at(golden.y, -1, rank, group.size()), group[rank].at("y")) == "");
          CHECK(difference(part_at(golden.grad_weight, 0, rank, group.size()),
                           group[rank].at("grad")) == "");
          CHECK(group[rank].at("said").item<bool>());
        }
      });
}

TEST_CASE("ColumnLinear refuses what it cannot cut, each with its own sentence", "[tp][TP-1]") {
  std::vector<std::string> said;
  run_emulated_ranks(Mesh({{"tp", 4}}), [&](MeshComm& comm, int64_t rank) {
    const auto refusal = [&](ColumnLinear::Options options) {
      return said_by([&] { ColumnLinear(std::move(options), comm.along("tp")); });
    };
    const std::vector<std::string> here = {
        refusal({.input_size = 5, .output_size = 10}),
        refusal({.input_size = 5, .output_size = 12, .stride = 5}),
        refusal({.input_size = 5, .output_size = 12, .stride = 2}),
        refusal({.input_size = 5, .output_size = 12, .blocks = {8, 3}}),
        refusal({.input_size = 5, .output_size = 12, .stride = 2, .blocks = {8, 4}})};
    if (rank == 0) said = here;
  });
  REQUIRE(said.size() == 5);
  CHECK(contains(said[0], "refused: output_size 10 does not divide by the 4 ranks of tp"));
  CHECK(contains(said[1], "refused: output_size 12 does not split into stride=5 equal blocks"));
  CHECK(contains(said[2], "refused: a cut size 6 does not divide by the 4 ranks"));
  CHECK(contains(said[3], "blocks [8,3] for output_size=12"));
  CHECK(contains(said[4], "stride=2"));
}

}  // namespace
}  // namespace shardproof::tests::column_linear_test
