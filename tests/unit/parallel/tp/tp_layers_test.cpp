// Each tensor-parallel linear layer against the plain layer that it replaces.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "mesh/layout.h"
#include "model/decoder.h"
#include "parallel/tp/blocks.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/placement.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/whole_layer.h"
#include "tensor/shard.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSamples = 2, kTokens = 12, kIn = 5, kOut = 10;

const Layout kWhole;
Layout on_sequence() { return Layout({Cut::even(1, "tp")}); }
Layout chunked(int64_t dim) { return Layout({Cut::chunk(dim, "tp")}); }

// How one layer is tested: the cuts of its tensors on each rank, and the layer.
struct LayerCase {
  std::string name;
  Layout input, weight, bias, output;
  bool sums_bias_grad = false;  // this rank's bias gradient is an addend
  bool frozen = false;          // the weight takes no gradient
  std::function<std::unique_ptr<Layer>(ParameterPtr, ParameterPtr, Communicator&)> make;
};

void check_linear(const LayerCase& layer_case, const Mesh& mesh, bool with_bias) {
  INFO(layer_case.name << " " << mesh.describe() << (with_bias ? " with bias" : ""));
  NoProbe nobody;
  const StepContext context{.probe = nobody};
  const at::Tensor x = random_tensor({kSamples, kTokens, kIn}, 1);
  const at::Tensor grad = random_tensor({kSamples, kTokens, kOut}, 2);
  const at::Tensor weight = random_tensor({kOut, kIn}, 3), bias = random_tensor({kOut}, 4);
  const ParameterPtr golden_weight = leaf("weight", weight);
  const ParameterPtr golden_bias = with_bias ? leaf("bias", bias) : nullptr;
  const at::Tensor golden_x = x.clone().requires_grad_();
  const at::Tensor golden = Linear(golden_weight, golden_bias).forward({golden_x}, context);
  golden.backward(grad);

  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const auto own = [&](const at::Tensor& full, const Layout& layout) {
      return cut(full, layout, mesh, rank);
    };
    const ParameterPtr own_weight = leaf("weight", own(weight, layer_case.weight));
    own_weight->tensor.requires_grad_(!layer_case.frozen);
    const ParameterPtr own_bias = with_bias ? leaf("bias", own(bias, layer_case.bias)) : nullptr;
    const auto layer = layer_case.make(own_weight, own_bias, comm.along("tp"));
    const at::Tensor own_x = own(x, layer_case.input).requires_grad_();
    const at::Tensor y = layer->forward({own_x}, context);
    y.backward(own(grad, layer_case.output));
    NamedResults result = {{"y", y.detach()}, {"grad x", own_x.grad()}};
    const at::Tensor grad_weight = own_weight->tensor.grad();
    if (grad_weight.defined()) result["grad weight"] = grad_weight;
    if (with_bias) {
      const at::Tensor grad_bias = own_bias->tensor.grad();
      result["grad bias"] = layer_case.sums_bias_grad
                                ? comm.along("tp").all_reduce(grad_bias, ReduceOp::kSum, "bias")
                                : grad_bias;
    }
    return result;
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const auto own = [&](const at::Tensor& full, const Layout& layout) {
      return cut(full, layout, mesh, rank);
    };
    const NamedResults& result = results[static_cast<size_t>(rank)];
    CHECK(difference(own(golden.detach(), layer_case.output), result.at("y")) == "");
    CHECK(difference(own(golden_x.grad(), layer_case.input), result.at("grad x")) == "");
    REQUIRE(result.count("grad weight") == (layer_case.frozen ? 0 : 1));
    if (!layer_case.frozen) {
      CHECK(difference(own(golden_weight->tensor.grad(), layer_case.weight),
                       result.at("grad weight")) == "");
    }
    if (!with_bias) continue;
    CHECK(difference(own(golden_bias->tensor.grad(), layer_case.bias), result.at("grad bias")) ==
          "");
  }
}

// tp 3 and 4 cut kOut = 10 into 4,4,2 and 3,3,3,1, and kIn = 5 into 2,2,1 and 2,2,1,0.
void check_on_meshes(const std::function<LayerCase(int64_t tp)>& make) {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool with_bias : {false, true}) {
      check_linear(make(tp), Mesh::training({.dp = tp == 2 ? 2 : 1, .tp = tp}), with_bias);
    }
  }
}

TEST_CASE("ColumnParallel: output cut, uneven, with and without sequence parallel", "[tp][TP-1]") {
  for (const bool sp : {false, true}) {
    check_on_meshes([sp](int64_t) {
      return LayerCase{
          .name = sp ? "column SP" : "column",
          .input = sp ? on_sequence() : kWhole,
          .weight = chunked(0),
          .bias = chunked(0),
          .output = chunked(-1),
          .make = [sp](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
            return std::make_unique<ColumnParallelLinear>(
                weight, bias, tp,
                ColumnParallelLinear::Options{.label = "linear", .sequence_parallel = sp});
          }};
    });
  }
}

TEST_CASE("ColumnParallel with a gathered output: its gradient is sliced, not summed",
          "[tp][TP-1]") {
  check_on_meshes([](int64_t tp_size) {
    return LayerCase{.name = "column gathered",
                     .input = kWhole,
                     .weight = chunked(0),
                     .bias = chunked(0),
                     .output = kWhole,
                     .make = [tp_size](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                       return std::make_unique<ColumnParallelLinear>(
                           weight, bias, tp,
                           ColumnParallelLinear::Options{.label = "linear",
                                                         .gather_output = true,
                                                         .output_parts = tp_parts(kOut, tp_size)});
                     }};
  });
}

TEST_CASE("RowParallel: the bias is added once after the sum", "[tp][TP-2]") {
  for (const bool sp : {false, true}) {
    check_on_meshes([sp](int64_t) {
      return LayerCase{
          .name = sp ? "row SP" : "row",
          .input = chunked(-1),
          .weight = chunked(1),
          .bias = kWhole,
          .output = sp ? on_sequence() : kWhole,
          .sums_bias_grad = sp,
          .make = [sp](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
            return std::make_unique<RowParallelLinear>(
                weight, bias, tp,
                RowParallelLinear::Options{.label = "linear", .sequence_parallel = sp});
          }};
    });
  }
}

TEST_CASE("RowParallel that cuts its whole input itself", "[tp][TP-2]") {
  check_on_meshes([](int64_t tp_size) {
    return LayerCase{.name = "row scattered",
                     .input = kWhole,
                     .weight = chunked(1),
                     .bias = kWhole,
                     .output = kWhole,
                     .make = [tp_size](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                       return std::make_unique<RowParallelLinear>(
                           weight, bias, tp,
                           RowParallelLinear::Options{.label = "linear",
                                                      .input_is_parallel = false,
                                                      .input_parts = tp_parts(kIn, tp_size)});
                     }};
  });
}

TEST_CASE("linear layers behind an asynchronous gradient, and with frozen weights",
          "[tp][TP-1][TP-2][TP-4]") {
  for (const bool sp : {false, true}) {
    for (const bool async : {false, true}) {
      for (const bool frozen : {false, true}) {
        check_on_meshes([=](int64_t) {
          return LayerCase{
              .name = "column",
              .input = sp ? on_sequence() : kWhole,
              .weight = chunked(0),
              .bias = chunked(0),
              .output = chunked(-1),
              .frozen = frozen,
              .make = [=](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                return std::make_unique<ColumnParallelLinear>(
                    weight, bias, tp,
                    ColumnParallelLinear::Options{
                        .label = "linear", .sequence_parallel = sp, .async_grad = async});
              }};
        });
      }
    }
    check_on_meshes([=](int64_t) {
      return LayerCase{
          .name = "frozen row",
          .input = chunked(-1),
          .weight = chunked(1),
          .bias = kWhole,
          .output = sp ? on_sequence() : kWhole,
          .sums_bias_grad = sp,
          .frozen = true,
          .make = [=](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
            return std::make_unique<RowParallelLinear>(
                weight, bias, tp,
                RowParallelLinear::Options{.label = "linear", .sequence_parallel = sp});
          }};
    });
  }
}

Layout fused(int64_t dim, const std::vector<int64_t>& blocks) {
  return Layout({Cut::in_blocks(dim, "tp", blocks)});
}

TEST_CASE("a fused output: each block cut, gathered in the full order", "[tp][TP-1]") {
  const std::vector<int64_t> blocks = {6, 2, 2};
  for (const bool gathers : {false, true}) {
    check_linear({.name = "fused column",
                  .input = kWhole,
                  .weight = fused(0, blocks),
                  .bias = fused(0, blocks),
                  .output = gathers ? kWhole : fused(-1, blocks),
                  .make =
                      [&](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                        return std::make_unique<ColumnParallelLinear>(
                            weight, bias, tp,
                            ColumnParallelLinear::Options{
                                .label = "linear", .gather_output = gathers, .blocks = blocks});
                      }},
                 Mesh::training({.dp = 2, .tp = 2}), true);
  }
}

TEST_CASE("blocks of features go to rank order and back", "[tp][TP-1][TP-2]") {
  const at::Tensor full = at::arange(12);
  const at::Tensor by_rank = in_rank_order(full, 0, {6, 6}, 3);
  CHECK(by_rank.equal(at::tensor({0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11}, at::kLong)));
  CHECK(in_full_order(by_rank, 0, {6, 6}, 3).equal(full));
  CHECK(in_rank_order(full, 0, {12}, 3).equal(full));
  const std::string said = said_by([&] { in_rank_order(full, 0, {8, 4}, 3); });
  CHECK(contains(said, "refused: a block 8 does not divide by the 3 ranks of tp"));
}

TEST_CASE("a bias that the caller adds, an output gathered from the next call on", "[tp][TP-1]") {
  const Mesh mesh({{"tp", 2}});
  const at::Tensor x = random_tensor({2, 3, 5}, 1), weight = random_tensor({4, 5}, 2);
  const at::Tensor bias = random_tensor({4}, 3);
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t) -> NamedResults {
    Communicator& tp = comm.along("tp");
    const ParameterPtr rows = cut_parameter(weight, 0, tp), columns = cut_parameter(weight, 1, tp);
    ColumnParallelLinear column(rows, cut_parameter(bias, 0, tp), tp,
                                {.label = "column", .skip_bias_add = true});
    const at::Tensor kept = run_layer(column, x);
    column.set_gather_output(true);
    RowParallelLinear row(cut_parameter(weight.t(), 1, tp), cut_parameter(x[0][0], -1, tp), tp,
                          {.label = "row", .skip_bias_add = true});
    return {{"kept", kept}, {"gathered", run_layer(column, x)}, {"row", run_layer(row, kept)}};
  });
  const at::Tensor y = at::linear(x, weight);
  for (size_t rank = 0; rank < 2; ++rank) {
    CHECK(difference(part_at(y, -1, rank, 2), results[rank].at("kept").detach()) == "");
    CHECK(difference(y, results[rank].at("gathered").detach()) == "");
    CHECK(difference(at::linear(y, weight.t()), results[rank].at("row").detach()) == "");
  }
}

TEST_CASE("a caller that communicates sums the gradients of two layers at once", "[tp][TP-1]") {
  const at::Tensor full = random_tensor({2, 3, 5}, 1), weight = random_tensor({4, 5}, 2);
  const at::Tensor grad = random_tensor({2, 3, 4}, 3);
  const auto results = on_every_rank(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t) {
    Communicator& tp = comm.along("tp");
    const ParameterPtr rows = cut_parameter(weight, 0, tp);
    const auto layer = [&](bool async) {
      return ColumnParallelLinear(
          rows, nullptr, tp, {.label = "linear", .caller_communicates = true, .async_grad = async});
    };
    ColumnParallelLinear first = layer(false), second = layer(true);
    const at::Tensor x = full.clone().requires_grad_();
    const at::Tensor shared = copy_with_all_reduce_backward(x, tp, "both");
    const at::Tensor y = run_layer(first, shared) + 3 * run_layer(second, shared);
    y.backward(part_at(grad, -1, static_cast<size_t>(tp.rank()), 2));
    return NamedResults{{"grad x", x.grad()}};
  });
  for (const NamedResults& result : results) {
    CHECK(difference(4 * grad.matmul(weight), result.at("grad x")) == "");
  }
}

TEST_CASE("calls of a linear: one reduction behind the weight gradient, none without need",
          "[tp][TP-4]") {
  const auto calls_of = [](ColumnParallelLinear::Options options, bool frozen, bool input_grad) {
    std::vector<CallLog> logs(2);
    const RankRuns runs = try_emulated_ranks(
        Mesh({{"tp", 2}}),
        [&](MeshComm& comm, int64_t) {
          const ParameterPtr weight = leaf("w", at::ones({2, 5}, at::kDouble));
          weight->tensor.requires_grad_(!frozen);
          ColumnParallelLinear layer(weight, leaf("b", at::ones({2}, at::kDouble)),
                                     comm.along("tp"), options);
          const at::Tensor x = at::ones({1, 6, 5}, at::kDouble).requires_grad_(input_grad);
          run_layer(layer, x).sum().backward();
        },
        {&logs[0], &logs[1]});
    CHECK(runs.error_text(0) == "");
    return logs[0].calls;
  };
  using Calls = std::vector<std::string>;
  const ColumnParallelLinear::Options plain = {.label = "l", .async_grad = true};
  const ColumnParallelLinear::Options silent = {
      .label = "l", .caller_communicates = true, .async_grad = true};
  const ColumnParallelLinear::Options sp = {
      .label = "l", .sequence_parallel = true, .async_grad = true};
  CHECK(calls_of(plain, false, true) == Calls{"all_reduce l backward"});
  CHECK(calls_of(plain, false, false).empty());
  CHECK(calls_of(silent, false, true).empty());
  CHECK(calls_of(sp, false, true) ==
        Calls{"all_gather l forward", "all_gather l regather", "reduce_scatter l backward"});
  CHECK(calls_of(sp, true, true) == Calls{"all_gather l forward", "reduce_scatter l backward"});
}

// A dispatcher gathers the tokens and sums the outputs; the layers between do not communicate.
TEST_CASE("an expert's two layers on their own group are the plain pair", "[tp][TP-1][TP-2]") {
  const at::Tensor x = random_tensor({1, 12, 5}, 1), grad = random_tensor({1, 12, 5}, 2);
  const at::Tensor up = random_tensor({24, 5}, 3), down = random_tensor({5, 24}, 4);
  const at::Tensor bias = random_tensor({5}, 5);
  std::vector<at::Tensor> golden;
  for (const at::Tensor& full : {x, up, down, bias}) {
    golden.push_back(full.clone().requires_grad_());
  }
  const at::Tensor whole =
      at::linear(at::linear(golden[0], golden[1]).tanh(), golden[2], golden[3]);
  whole.backward(grad);
  on_every_group(
      {1, 2, 3, 4},
      [&](Communicator& etp) -> NamedResults {
        const ParameterPtr wide = cut_parameter(up, 0, etp), narrow = cut_parameter(down, 1, etp);
        const ParameterPtr added = cut_parameter(bias, -1, etp);
        ColumnParallelLinear first(
            wide, nullptr, etp,
            {.label = "up", .sequence_parallel = true, .caller_communicates = true});
        const RowParallelLinear::Options adds = {.label = "down", .caller_communicates = true};
        RowParallelLinear::Options leaves = adds;
        leaves.skip_bias_add = true;
        RowParallelLinear second(narrow, added, etp, leaves);
        const std::string said = said_by([&] { RowParallelLinear(narrow, added, etp, adds); });
        const auto part = [&](const at::Tensor& full) {
          return part_at(full, 1, static_cast<size_t>(etp.rank()), static_cast<size_t>(etp.size()));
        };
        const at::Tensor own = part(x).clone().requires_grad_();
        const at::Tensor tokens = all_gather_with_reduce_scatter_backward(own, etp, 1, "dispatch");
        const at::Tensor addend = run_layer(second, run_layer(first, tokens).tanh());
        const at::Tensor y =
            reduce_scatter_with_all_gather_backward(addend, etp, 1, "combine") + added->tensor;
        y.backward(part(grad));
        return {{"y", y.detach()},
                {"grad x", own.grad()},
                {"grad up", wide->tensor.grad()},
                {"grad down", narrow->tensor.grad()},
                {"grad bias", etp.all_reduce(added->tensor.grad(), ReduceOp::kSum, "b")},
                {"said", at::full({}, contains(said, "adds its bias before the caller sums"))}};
      },
      [&](const std::vector<NamedResults>& group) {
        const size_t size = group.size();
        for (size_t rank = 0; rank < size; ++rank) {
          const auto& own = group[rank];
          CHECK(difference(part_at(whole.detach(), 1, rank, size), own.at("y")) == "");
          CHECK(difference(part_at(golden[0].grad(), 1, rank, size), own.at("grad x")) == "");
          CHECK(difference(part_at(golden[1].grad(), 0, rank, size), own.at("grad up")) == "");
          CHECK(difference(part_at(golden[2].grad(), 1, rank, size), own.at("grad down")) == "");
          CHECK(difference(golden[3].grad(), own.at("grad bias")) == "");
          CHECK(own.at("said").item<bool>());
        }
      });
}

TEST_CASE("a whole layer between sequence shards opens or closes a region", "[tp][TP-1]") {
  for (const auto place : {WholeLayer::Place::kOpensRegion, WholeLayer::Place::kClosesRegion}) {
    const bool opens = place == WholeLayer::Place::kOpensRegion;
    check_on_meshes([&](int64_t) {
      return LayerCase{.name = opens ? "whole opener" : "whole closer",
                       .input = opens ? on_sequence() : kWhole,
                       .weight = kWhole,
                       .bias = kWhole,
                       .output = opens ? kWhole : on_sequence(),
                       .make = [place](ParameterPtr weight, ParameterPtr bias, Communicator& tp) {
                         return std::make_unique<WholeLayer>(std::make_unique<Linear>(weight, bias),
                                                             place, tp, "linear");
                       }};
    });
  }
}

}  // namespace
}  // namespace shardproof::tests
