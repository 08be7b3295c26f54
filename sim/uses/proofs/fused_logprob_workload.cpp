// Workload: log-probabilities directly from hidden states, with the output layer cut over tp.
//
// Sharded: src/logprob/fused_logprob.h. Over dp the rows are cut evenly and the gradients of weight
// and bias are addends.
#include <ATen/ATen.h>

#include "logprob/fused_logprob.h"
#include "model/precision.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/passes.h"

namespace shardproof::sim::proofs {
namespace {

Layout vocabulary_over_tp() { return Layout({Cut::even(0, "tp")}); }

WorkloadTensors fused_inputs(Draw& draw, const Options& options) {
  const int64_t rows = options["rows"], hidden = options["hidden_size"];
  const int64_t vocab = options["vocab_size"];
  WorkloadTensors inputs = {{"hidden", draw.normal({rows, hidden}), over_dp()},
                            {"weight", draw.normal({vocab, hidden}), vocabulary_over_tp(), {"dp"}},
                            {"target", draw.integers(vocab, {rows}), over_dp()}};
  if (options["bias"])
    inputs.push_back({"bias", draw.normal({vocab}), vocabulary_over_tp(), {"dp"}});
  return inputs;
}

WorkloadTensors plain_fused(const TensorsByName& full, const Options& options) {
  at::Tensor logits = full.at("hidden").matmul(full.at("weight").t());
  if (options["bias"]) logits = logits + full.at("bias");
  logits = logits.to(wider_type(logits.scalar_type()));
  const at::Tensor all = log_softmax_of_rows(logits / options["temperature"].get<double>());
  return {{"logprobs", all.gather(-1, full.at("target").unsqueeze(-1)).squeeze(-1)}};
}

WorkloadTensors sharded_fused(const TensorsByName& local, MeshComm& comm, const Options& options) {
  const at::Tensor bias = options["bias"] ? local.at("bias") : at::Tensor();
  return {{"logprobs",
           fused_vocab_parallel_logprob(
               local.at("hidden"), local.at("weight"), bias, local.at("target"), comm.along("tp"),
               options["vocab_size"],
               {.temperature = options["temperature"], .block_rows = options["block_rows"]}),
           over_dp()}};
}

}  // namespace

Workload fused_logprob_workload() {
  return {.name = "fused_logprob",
          .inputs = fused_inputs,
          .plain = plain_fused,
          .sharded = sharded_fused};
}

}  // namespace shardproof::sim::proofs
