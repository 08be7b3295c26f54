// The tensor-parallel layers against megatron-core's, whose results and script are in
// golden/witness: tensor-parallel sizes 1, 2 and 4, with and without sequence parallelism, to
// float32 rounding.
#include <catch2/catch.hpp>

#include "parallel/tp/blocks.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/vocab_parallel_embedding.h"
#include "tensor/safetensors.h"
#include "tests/support/rank_results.h"
#include "tests/unit/parallel/tp/tp_layer_world.h"

namespace shardproof::tests {
namespace {

struct Config {
  int64_t tp;
  bool sp;
  std::string prefix() const { return "tp" + std::to_string(tp) + (sp ? "_sp." : "."); }
};

// Inputs of megatron-core, which were rounded to float32. Ours compute in float64 from them.
class Inputs {
 public:
  at::Tensor operator()(const std::string& name) const {
    const at::Tensor values = file_.get(name);
    return values.is_floating_point() ? values.to(at::kFloat).to(at::kDouble) : values;
  }

 private:
  SafetensorsFile file_ = SafetensorsFile::open("golden/witness/layers.safetensors");
};

struct OnRank {
  Communicator& tp;
  bool sp;
  at::Tensor part(const at::Tensor& full, int64_t dim, const std::vector<int64_t>& blocks) const {
    return part_at(full, dim, static_cast<size_t>(tp.rank()), static_cast<size_t>(tp.size()),
                   blocks);
  }
  at::Tensor tokens(const at::Tensor& full) const {
    return sp ? part(full, 0, {full.size(0)}) : full;
  }
  at::Tensor whole(const at::Tensor& local) const {
    return sp ? tp.all_gather(local, 0, "whole") : local.clone();
  }
  at::Tensor joined(const at::Tensor& local, int64_t dim,
                    const std::vector<int64_t>& blocks) const {
    return in_full_order(tp.all_gather(local, dim, "joined"), dim, blocks, tp.size());
  }
};

NamedResults column(const Inputs& inputs, const OnRank& on, int64_t stride) {
  const std::vector<int64_t> blocks(static_cast<size_t>(stride), 24 / stride);
  const std::string name = stride == 1 ? "column" : "gate_up";
  const ParameterPtr weight = cut_parameter(inputs("column.weight"), 0, on.tp, blocks);
  const ParameterPtr bias = cut_parameter(inputs("column.bias"), 0, on.tp, blocks);
  ColumnParallelLinear layer(
      weight, bias, on.tp,
      {.label = "l", .sequence_parallel = on.sp, .blocks = blocks, .async_grad = true});
  const at::Tensor x = on.tokens(inputs("column.x")).clone().requires_grad_();
  const at::Tensor y = run_tokens_first(layer, x);
  y.backward(on.part(inputs("column.grad"), -1, blocks));
  return {{name + ".y", on.joined(y.detach(), 2, blocks)},
          {name + ".grad_x", on.whole(x.grad())},
          {name + ".grad_weight", on.joined(weight->tensor.grad(), 0, blocks)},
          {name + ".grad_bias", on.joined(bias->tensor.grad(), 0, blocks)}};
}

NamedResults row(const Inputs& inputs, const OnRank& on) {
  const ParameterPtr weight = cut_parameter(inputs("row.weight"), 1, on.tp);
  const ParameterPtr bias = cut_parameter(inputs("row.bias"), -1, on.tp);
  RowParallelLinear layer(weight, bias, on.tp, {.label = "l", .sequence_parallel = on.sp});
  const at::Tensor x = on.part(inputs("row.x"), -1, {24}).requires_grad_();
  const at::Tensor y = run_tokens_first(layer, x);
  y.backward(on.tokens(inputs("row.grad")));
  const at::Tensor own = bias->tensor.grad();
  return {{"row.y", on.whole(y.detach())},
          {"row.grad_x", on.joined(x.grad(), 2, {24})},
          {"row.grad_weight", on.joined(weight->tensor.grad(), 1, {24})},
          {"row.grad_bias", on.sp ? on.tp.all_reduce(own, ReduceOp::kSum, "bias") : own}};
}

NamedResults embedding(const Inputs& inputs, const OnRank& on) {
  const ParameterPtr weight = cut_parameter(inputs("embedding.weight"), 0, on.tp);
  VocabParallelEmbedding layer(weight, on.tp, {.label = "l", .sequence_parallel = on.sp});
  // Megatron-LM's scattered output is [S, B, E].
  const at::Tensor y = run_layer(layer, inputs("embedding.ids")).transpose(0, 1);
  y.backward(on.tokens(inputs("embedding.grad").transpose(0, 1)));
  return {{"embedding.y", on.whole(y.detach()).transpose(0, 1)},
          {"embedding.grad_weight", on.joined(weight->tensor.grad(), 0, {36})}};
}

TEST_CASE("the layers are megatron-core's, to float32 rounding",
          "[tp][TP-1][TP-2][TP-3][witness]") {
  const SafetensorsFile file = SafetensorsFile::open("golden/witness/megatron.safetensors");
  const Inputs inputs;
  size_t compared = 0;
  for (const Config& config :
       {Config{1, false}, Config{2, false}, Config{2, true}, Config{4, false}, Config{4, true}}) {
    const auto results = on_every_rank(Mesh({{"tp", config.tp}}), [&](MeshComm& comm, int64_t) {
      const OnRank on{comm.along("tp"), config.sp};
      NamedResults all = column(inputs, on, 1);
      for (const NamedResults& more :
           {column(inputs, on, 2), row(inputs, on), embedding(inputs, on)}) {
        all.insert(more.begin(), more.end());
      }
      return all;
    });
    for (const NamedResults& result : results) {
      for (const auto& [name, value] : result) {
        INFO(config.prefix() << name);
        const at::Tensor golden = file.get(config.prefix() + name);
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
