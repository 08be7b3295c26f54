#include "sim/proofs/logprob_workload.h"

#include <ATen/ATen.h>

#include "logprob/vocab_parallel_entropy.h"
#include "logprob/vocab_parallel_kl.h"
#include "logprob/vocab_parallel_logprob.h"

namespace shardproof::sim {
namespace {

Layout of_rows() { return Layout({Cut::even(0, "dp")}); }

Layout of_columns() {
  Layout layout = of_rows();
  layout.append(Cut::even(1, "tp"));
  return layout;
}

WorkloadTensors draw_rows(Draw& draw, const Options& options) {
  const int64_t rows = options["rows"], vocab = options["vocab_size"];
  const auto logits = [&] {
    const at::Tensor drawn = draw.normal({rows, vocab}) * options["spread"].get<double>();
    return drawn.to(at::kBFloat16).to(at::kDouble);
  };
  return {{"logits", logits(), of_columns()},
          {"logits_q", logits(), of_columns()},
          {"target", draw.integers(vocab, {rows}), of_rows()}};
}

WorkloadTensors plain_functions(const TensorsByName& full, const Options& options) {
  const auto log_softmax = [&](const char* name) {
    const at::Tensor logits = full.at(name);
    const at::ScalarType wide = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    return at::log_softmax(logits.to(wide) / options["temperature"].get<double>(), -1);
  };
  const at::Tensor p = log_softmax("logits"), q = log_softmax("logits_q");
  return {{"logprobs", p.gather(-1, full.at("target").unsqueeze(-1)).squeeze(-1)},
          {"entropy", -(p.exp() * p).sum(-1)},
          {"kl", (p.exp() * (p - q)).sum(-1)}};
}

WorkloadTensors sharded_functions(const TensorsByName& local, MeshComm& comm,
                                  const Options& options) {
  const LogprobOptions given{.temperature = options["temperature"],
                             .block_rows = options["block_rows"]};
  const auto labelled = [&given](const char* label) {
    LogprobOptions out = given;
    out.label = label;
    return out;
  };
  Communicator& tp = comm.along("tp");
  const int64_t vocab = options["vocab_size"];
  const at::Tensor logits = local.at("logits");
  return {{"logprobs",
           vocab_parallel_logprob(logits, local.at("target"), tp, vocab, labelled("logprobs")),
           of_rows()},
          {"entropy", vocab_parallel_entropy(logits, tp, vocab, labelled("entropy")), of_rows()},
          {"kl", vocab_parallel_kl(logits, local.at("logits_q"), tp, vocab, labelled("kl")),
           of_rows()}};
}

}  // namespace

Workload logprob_workload() {
  return {.name = "vocab_parallel_logprob",
          .about = "logprob of a target, entropy and KL of each row, vocabulary cut over tp",
          .options = {{"rows", 6},
                      {"vocab_size", 36},
                      {"spread", 4.0},
                      {"temperature", 1.0},
                      {"block_rows", 0}},
          .inputs = draw_rows,
          .plain = plain_functions,
          .sharded = sharded_functions};
}

}  // namespace shardproof::sim
