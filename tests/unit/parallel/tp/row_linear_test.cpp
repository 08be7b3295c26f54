// The row-parallel linear layer with each of its options against one device.
#include "parallel/tp/row_linear.h"

#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests::row_linear_test {
namespace {

constexpr int64_t kS = 12, kB = 3, kF = 24, kE = 5;  // [S, B, F] -> [S, B, E]; 1 to 4 ranks divide

struct RowGolden {
  at::Tensor x, weight, bias, grad, y = {};
  at::Tensor grad_x = {}, grad_weight = {}, grad_bias = {};
};

RowGolden row_golden() {
  RowGolden golden{.x = random_tensor({kS, kB, kF}, 1),
                   .weight = random_tensor({kE, kF}, 2),
                   .bias = random_tensor({kE}, 3),
                   .grad = random_tensor({kS, kB, kE}, 4)};
  const at::Tensor x = golden.x.clone().requires_grad_();
  const at::Tensor weight = golden.weight.clone().requires_grad_();
  const at::Tensor bias = golden.bias.clone().requires_grad_();
  const at::Tensor y = at::matmul(x, weight.t()) + bias;
  y.backward(golden.grad);
  golden.y = y.detach();
  golden.grad_x = x.grad();
  golden.grad_weight = weight.grad();
  golden.grad_bias = bias.grad();
  return golden;
}

RowLinear::Options row_options(const RowGolden& golden) {
  return {.input_size = kF,
          .output_size = kE,
          .dtype = at::kDouble,
          .init = filled_with(golden.weight)};
}

void fill_bias(RowLinear& layer, const RowGolden& golden) {
  const at::NoGradGuard no_grad;
  layer.bias()->tensor.copy_(golden.bias);
}

using Change = std::function<void(RowLinear::Options&)>;

NamedResults run_row(const RowGolden& golden, const Change& change, Communicator& tp) {
  RowLinear::Options options = row_options(golden);
  change(options);
  RowLinear layer(options, tp);
  fill_bias(layer, golden);
  const auto rank = static_cast<size_t>(tp.rank()), size = static_cast<size_t>(tp.size());
  const auto& blocks = layer.weight().blocks;
  const at::Tensor values =
      options.input_is_parallel ? part_at(golden.x, -1, rank, size, blocks) : golden.x;
  const at::Tensor x = values.permute({2, 1, 0}).contiguous().permute({2, 1, 0}).requires_grad_();
  const auto [output, bias] = layer.forward(x);
  const at::Tensor y = bias.defined() ? output + bias : output;
  const bool sp = layer.sequence_parallel();
  y.backward(sp ? part_at(golden.grad, 0, rank, size) : golden.grad);
  at::Tensor grad_bias = layer.bias()->tensor.grad();
  if (layer.bias()->sequence_parallel) grad_bias = tp.all_reduce(grad_bias, ReduceOp::kSum, "b");
  NamedResults results = {{"y", y.detach()}, {"grad x", x.grad()}, {"grad bias", grad_bias}};
  if (layer.weight().tensor.grad().defined()) results["grad weight"] = layer.weight().tensor.grad();
  return results;
}

void check_row(const std::string& name, const Change& change,
               const std::vector<int64_t>& blocks = {kF}) {
  const RowGolden golden = row_golden();
  RowLinear::Options options = row_options(golden);
  change(options);
  on_every_group(
      {1, 2, 3, 4}, [&](Communicator& tp) { return run_row(golden, change, tp); },
      [&](const std::vector<NamedResults>& group) {
        for (size_t rank = 0; rank < group.size(); ++rank) {
          INFO(name << " tp=" << group.size() << " rank " << rank);
          const bool sp = options.sequence_parallel && group.size() > 1;
          const auto own = [&](const at::Tensor& full, int64_t dim) {
            return part_at(full, dim, rank, group.size(), blocks);
          };
          CHECK(difference(sp ? part_at(golden.y, 0, rank, group.size()) : golden.y,
                           group[rank].at("y")) == "");
          CHECK(difference(options.input_is_parallel ? own(golden.grad_x, -1) : golden.grad_x,
                           group[rank].at("grad x")) == "");
          CHECK(difference(golden.grad_bias, group[rank].at("grad bias")) == "");
          CHECK(group[rank].count("grad weight") == (options.frozen ? 0 : 1));
          if (!options.frozen) {
            CHECK(difference(own(golden.grad_weight, 1), group[rank].at("grad weight")) == "");
          }
        }
      });
}

TEST_CASE("RowLinear with each option is the plain layer", "[tp][TP-2]") {
  using Options = RowLinear::Options;
  check_row("plain", [](Options&) {});
  check_row("skip_bias_add", [](Options& o) { o.skip_bias_add = true; });
  check_row("sequence parallel", [](Options& o) { o.sequence_parallel = true; });
  check_row("sequence parallel, skip_bias_add",
            [](Options& o) { o.sequence_parallel = o.skip_bias_add = true; });
  check_row("whole input", [](Options& o) { o.input_is_parallel = false; });
  check_row("frozen", [](Options& o) { o.frozen = true; });
}

TEST_CASE("RowLinear with stride: a whole input is cut as the weight is", "[tp][TP-2]") {
  using Options = RowLinear::Options;
  check_row("stride 2", [](Options& o) { o.stride = 2; }, {12, 12});
  check_row("stride 2, whole input", [](Options& o) { o.stride = 2, o.input_is_parallel = false; },
            {12, 12});
}

TEST_CASE("RowLinear refuses, each with its own sentence", "[tp][TP-2]") {
  std::vector<std::string> said;
  run_emulated_ranks(Mesh({{"tp", 4}}), [&](MeshComm& comm, int64_t rank) {
    const auto refusal = [&](RowLinear::Options options) {
      return said_by([&] { RowLinear(std::move(options), comm.along("tp")); });
    };
    const std::vector<std::string> here = {
        refusal({.input_size = 10, .output_size = 5}),
        refusal({.input_size = 12,
                 .output_size = 5,
                 .input_is_parallel = false,
                 .sequence_parallel = true}),
        refusal({.input_size = 12, .output_size = 5, .expert = true}),
        refusal({.input_size = 12, .output_size = 5, .skip_bias_add = true, .expert = true})};
    if (rank == 0) said = here;
  });
  REQUIRE(said.size() == 4);
  CHECK(contains(said[0], "refused: input_size 10 does not divide by the 4 ranks of tp"));
  CHECK(contains(said[1], "sequence_parallel without input_is_parallel"));
  CHECK(contains(said[2], "adds its bias before the dispatcher sums over 4 ranks"));
  CHECK(said[3] == "");
}

// Experts on their own group: the dispatcher gathers the tokens and sums what comes out; the layers
// between communicate nothing.
TEST_CASE("an expert's two layers on their own group are the plain pair", "[tp][TP-1][TP-2]") {
  const at::Tensor x = random_tensor({kS, kE}, 1), grad = random_tensor({kS, kE}, 2);
  const at::Tensor up = random_tensor({kF, kE}, 3), down = random_tensor({kE, kF}, 4);
  const at::Tensor bias = random_tensor({kE}, 5);
  const at::Tensor golden_x = x.clone().requires_grad_(), golden_up = up.clone().requires_grad_();
  const at::Tensor golden_down = down.clone().requires_grad_();
  const at::Tensor golden_bias = bias.clone().requires_grad_();
  const at::Tensor golden =
      at::linear(at::linear(golden_x, golden_up).tanh(), golden_down, golden_bias);
  golden.backward(grad);
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& etp) -> NamedResults {
        ColumnLinear first({.input_size = kE,
                            .output_size = kF,
                            .bias = false,
                            .sequence_parallel = true,  // of the model; not of an expert
                            .expert = true,
                            .expert_parallel = true,
                            .dtype = at::kDouble,
                            .init = filled_with(up)},
                           etp);
        RowLinear second({.input_size = kF,
                          .output_size = kE,
                          .skip_bias_add = true,
                          .expert = true,
                          .expert_parallel = true,
                          .dtype = at::kDouble,
                          .init = filled_with(down)},
                         etp);
        const auto rank = static_cast<size_t>(etp.rank()), size = static_cast<size_t>(etp.size());
        {
          const at::NoGradGuard no_grad;
          second.bias()->tensor.copy_(bias);
        }
        const at::Tensor own = part_at(x, 0, rank, size).clone().requires_grad_();
        const at::Tensor tokens = all_gather_with_reduce_scatter_backward(own, etp, 0, "dispatch");
        const auto [addend, b] = second.forward(first.forward(tokens).output.tanh());
        const at::Tensor y = reduce_scatter_with_all_gather_backward(addend, etp, 0, "combine") + b;
        y.backward(part_at(grad, 0, rank, size));
        const bool marks = !first.weight()->allreduce && !second.weight().allreduce &&
                           !second.bias()->allreduce && !first.sequence_parallel();
        return {{"y", y.detach()},
                {"grad x", own.grad()},
                {"grad up", first.weight()->tensor.grad()},
                {"grad down", second.weight().tensor.grad()},
                {"grad bias", etp.all_reduce(second.bias()->tensor.grad(), ReduceOp::kSum, "b")},
                {"marks", at::full({}, marks)}};
      },
      [&](const std::vector<NamedResults>& group) {
        const size_t size = group.size();
        for (size_t rank = 0; rank < size; ++rank) {
          const auto& own = group[rank];
          CHECK(difference(part_at(golden.detach(), 0, rank, size), own.at("y")) == "");
          CHECK(difference(part_at(golden_x.grad(), 0, rank, size), own.at("grad x")) == "");
          CHECK(difference(part_at(golden_up.grad(), 0, rank, size), own.at("grad up")) == "");
          CHECK(difference(part_at(golden_down.grad(), 1, rank, size), own.at("grad down")) == "");
          CHECK(difference(golden_bias.grad(), own.at("grad bias")) == "");
          CHECK(own.at("marks").item<bool>());
        }
      });
}

}  // namespace
}  // namespace shardproof::tests::row_linear_test
