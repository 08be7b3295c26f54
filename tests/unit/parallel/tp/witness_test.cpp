// The tensor-parallel layers against plain PyTorch's, to float64 rounding, and against
// megatron-core's, to float32 rounding. The results of both are in golden/witness with the scripts.
#include <catch2/catch.hpp>

#include "parallel/tp/blocks.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tensor/safetensors.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

// The inputs of both. Those of megatron-core were rounded to float32; ours compute in float64.
struct Inputs {
  bool rounded;
  SafetensorsFile file = SafetensorsFile::open("golden/witness/layers.safetensors");
  at::Tensor operator()(const std::string& name) const {
    const at::Tensor values = file.get(name);
    return rounded && values.is_floating_point() ? values.to(at::kFloat).to(at::kDouble) : values;
  }
};

struct OnRank {
  const Inputs& inputs;
  Communicator& tp;
  bool sp;
  at::Tensor tokens(const at::Tensor& full) const { return sp ? own_part(full, 0, tp) : full; }
  at::Tensor whole(const at::Tensor& local) const {
    return sp ? tp.all_gather(local, 0, "whole") : local.clone();
  }
  at::Tensor joined(const at::Tensor& local, int64_t dim,
                    const std::vector<int64_t>& blocks) const {
    return in_full_order(tp.all_gather(local, dim, "joined"), dim, blocks, tp.size());
  }
};

NamedResults linear_of(const OnRank& on, const std::string& name,
                       const std::vector<int64_t>& blocks) {
  const ParameterPtr weight = cut_parameter(on.inputs("column.weight"), 0, on.tp, blocks);
  const ParameterPtr bias = cut_parameter(on.inputs("column.bias"), 0, on.tp, blocks);
  ColumnParallelLinear layer(
      weight, bias, on.tp,
      {.label = "l", .sequence_parallel = on.sp, .blocks = blocks, .async_grad = true});
  const at::Tensor x = on.tokens(on.inputs("column.x")).clone().requires_grad_();
  const at::Tensor y = run_tokens_first(layer, x);
  y.backward(own_part(on.inputs("column.grad"), -1, on.tp, blocks));
  return {{name + ".y", on.joined(y.detach(), 2, blocks)},
          {name + ".grad_x", on.whole(x.grad())},
          {name + ".grad_weight", on.joined(weight->tensor.grad(), 0, blocks)},
          {name + ".grad_bias", on.joined(bias->tensor.grad(), 0, blocks)}};
}

NamedResults column(const OnRank& on) { return linear_of(on, "column", {24}); }

// The same with megatron-core's stride of 2.
NamedResults gate_up(const OnRank& on) { return linear_of(on, "gate_up", {12, 12}); }

NamedResults row(const OnRank& on) {
  const ParameterPtr weight = cut_parameter(on.inputs("row.weight"), 1, on.tp);
  const ParameterPtr bias = cut_parameter(on.inputs("row.bias"), -1, on.tp);
  RowParallelLinear layer(weight, bias, on.tp, {.label = "l", .sequence_parallel = on.sp});
  const at::Tensor x = own_part(on.inputs("row.x"), -1, on.tp).requires_grad_();
  const at::Tensor y = run_tokens_first(layer, x);
  y.backward(on.tokens(on.inputs("row.grad")));
  const at::Tensor own = bias->tensor.grad();
  return {{"row.y", on.whole(y.detach())},
          {"row.grad_x", on.joined(x.grad(), 2, {24})},
          {"row.grad_weight", on.joined(weight->tensor.grad(), 1, {24})},
          {"row.grad_bias", on.sp ? on.tp.all_reduce(own, ReduceOp::kSum, "bias") : own}};
}

NamedResults embedding(const OnRank& on) {
  const ParameterPtr weight = cut_parameter(on.inputs("embedding.weight"), 0, on.tp);
  VocabParallelEmbedding layer(weight, on.tp, {.label = "l", .sequence_parallel = on.sp});
  // Megatron-LM's scattered output is [S, B, E].
  const at::Tensor y = run_layer(layer, on.inputs("embedding.ids")).transpose(0, 1);
  y.backward(on.tokens(on.inputs("embedding.grad").transpose(0, 1)));
  return {{"embedding.y", on.whole(y.detach()).transpose(0, 1)},
          {"embedding.grad_weight", on.joined(weight->tensor.grad(), 0, {36})}};
}

NamedResults mlp(const OnRank& on) {
  const std::vector<int64_t> halves = {24, 24};
  const ParameterPtr fused = cut_parameter(on.inputs("mlp.gate_up"), 0, on.tp, halves);
  const ParameterPtr narrowing = cut_parameter(on.inputs("mlp.down"), 1, on.tp);
  ColumnParallelLinear up(
      fused, nullptr, on.tp,
      {.label = "l", .sequence_parallel = on.sp, .blocks = halves, .async_grad = true});
  RowParallelLinear down(narrowing, nullptr, on.tp, {.label = "l", .sequence_parallel = on.sp});
  const at::Tensor x = on.tokens(on.inputs("mlp.x")).clone().requires_grad_();
  const auto both = run_tokens_first(up, x).chunk(2, -1);
  const at::Tensor y = run_tokens_first(down, at::silu(both[0]) * both[1]);
  y.backward(on.tokens(on.inputs("mlp.grad")));
  return {{"mlp.y", on.whole(y.detach())},
          {"mlp.grad_x", on.whole(x.grad())},
          {"mlp.grad_gate_up", on.joined(fused->tensor.grad(), 0, halves)},
          {"mlp.grad_down", on.joined(narrowing->tensor.grad(), 1, {24})}};
}

// The main gradient of one weight of embedding and output layer, over three microbatches.
NamedResults tied(const OnRank& on) {
  const ParameterPtr shared = cut_parameter(on.inputs("tied.weight"), 0, on.tp);
  const at::Tensor ids = on.inputs("tied.ids"), grad = on.inputs("tied.grad");
  shared->main_gradient = std::make_shared<MainGradient>(
      MainGradient{.sum = at::zeros_like(shared->tensor), .wants_dummy = true, .zero_dummy = true});
  VocabParallelEmbedding lookup(shared, on.tp, {.label = "l", .sequence_parallel = on.sp});
  ColumnParallelLinear head(shared, nullptr, on.tp, {.label = "l", .sequence_parallel = on.sp});
  for (int64_t i = 0; i < 3; ++i) {
    const at::Tensor y = run_layer(head, run_layer(lookup, ids[i]).tanh());
    y.backward(own_part(grad[i] * (i + 1), -1, on.tp));
    finish_main_gradient(shared->tensor, *shared->main_gradient);
  }
  return {{"tied.grad_weight", on.joined(shared->main_gradient->sum, 0, {36})}};
}

// The named results of each rank, whole.
std::vector<NamedResults> results_of(const std::vector<NamedResults (*)(const OnRank&)>& layers,
                                     const Inputs& inputs, int64_t tp, bool sp) {
  return on_every_rank(Mesh({{"tp", tp}}), [&](MeshComm& comm, int64_t) {
    NamedResults all;
    for (const auto layer : layers) all.merge(layer({inputs, comm.along("tp"), sp}));
    return all;
  });
}

TEST_CASE("the layers are PyTorch's, to float64 rounding",
          "[tp][TP-1][TP-2][TP-3][TP-4][witness]") {
  const Inputs inputs{.rounded = false};
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const bool sp : {false, true}) {
      for (const auto& all : results_of({column, row, embedding, mlp, tied}, inputs, tp, sp)) {
        CHECK(all.size() == 15);
        for (const auto& [name, value] : all) {
          INFO("tp" << tp << (sp ? "_sp." : ".") << name);
          CHECK(difference(inputs.file.get(name), value) == "");
        }
      }
    }
  }
}

TEST_CASE("the layers are megatron-core's, to float32 rounding",
          "[tp][TP-1][TP-2][TP-3][witness]") {
  const SafetensorsFile file = SafetensorsFile::open("golden/witness/megatron.safetensors");
  const Inputs inputs{.rounded = true};
  size_t compared = 0;
  for (const auto& [tp, sp] : std::vector<std::pair<int64_t, bool>>{
           {1, false}, {2, false}, {2, true}, {4, false}, {4, true}}) {
    const auto results = results_of({column, gate_up, row, embedding}, inputs, tp, sp);
    for (const NamedResults& result : results) {
      for (const auto& [name, value] : result) {
        const std::string key = "tp" + std::to_string(tp) + (sp ? "_sp." : ".") + name;
        INFO(key);
        const at::Tensor golden = file.get(key);
        REQUIRE(golden.scalar_type() == at::kFloat);
        CHECK(difference(golden.to(at::kDouble), value, 3e-6) == "");
      }
    }
    compared += results[0].size();
  }
  CHECK(compared == file.names().size());
}

}  // namespace
}  // namespace shardproof::tests
