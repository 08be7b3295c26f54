// Workload: log-probabilities, entropy and KL over a vocabulary that is cut over tp.
//
// Sharded: src/logprob/vocab_parallel_{logprob,entropy,kl}.h. Over dp the rows are cut evenly. The
// logits are exact in bfloat16, hence equal in every precision, and any error comes from the
// functions.
#include <ATen/ATen.h>

#include <limits>

#include "logprob/vocab_parallel_entropy.h"
#include "logprob/vocab_parallel_kl.h"
#include "logprob/vocab_parallel_logprob.h"
#include "model/precision.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/passes.h"

namespace shardproof::sim::proofs {
namespace {

Layout of_columns() {
  Layout layout = over_dp();
  layout.append(Cut::even(1, "tp"));
  return layout;
}

// [rows, vocab]: the tokens that a sampler rules out for both policies; never a target.
at::Tensor ruled_out(int64_t every, const at::Tensor& target, int64_t vocab) {
  if (every == 0) return at::zeros({target.size(0), vocab}, at::kBool);
  const at::Tensor columns = at::arange(vocab, at::kLong);
  const at::Tensor rows = at::arange(target.size(0), at::kLong).unsqueeze(1);
  return (columns + rows).remainder(every).eq(0).logical_and(columns.ne(target.unsqueeze(1)));
}

WorkloadTensors draw_rows(Draw& draw, const Options& options) {
  const int64_t rows = options["rows"], vocab = options["vocab_size"];
  const auto drawn_logits = [&] {
    const at::Tensor drawn = draw.normal({rows, vocab}) * options["spread"].get<double>();
    return drawn.to(at::kBFloat16).to(at::kDouble);
  };
  const at::Tensor p = drawn_logits(), q = drawn_logits();
  const at::Tensor target = draw.integers(vocab, {rows});
  const at::Tensor out = ruled_out(options["ruled_out_every"], target, vocab);
  const double never = -std::numeric_limits<double>::infinity();
  return {{"logits", p.masked_fill(out, never), of_columns()},
          {"logits_q", q.masked_fill(out, never), of_columns()},
          {"target", target, over_dp()}};
}

WorkloadTensors plain_functions(const TensorsByName& full, const Options& options) {
  const auto log_softmax = [&](const char* name) {
    const at::Tensor logits = full.at(name);
    const at::Tensor wide = logits.to(wider_type(logits.scalar_type()));
    return log_softmax_of_rows(wide / options["temperature"].get<double>());
  };
  const at::Tensor p = log_softmax("logits"), q = log_softmax("logits_q");
  // A token of probability 0 adds nothing: p log p tends to 0 with p.
  const auto finite = [&p](const at::Tensor& values) {
    return values.masked_fill(p.isneginf(), 0);
  };
  return {{"logprobs", p.gather(-1, full.at("target").unsqueeze(-1)).squeeze(-1)},
          {"entropy", -(p.exp() * finite(p)).sum(-1)},
          {"kl", (p.exp() * (finite(p) - finite(q))).sum(-1)}};
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
           over_dp()},
          {"entropy", vocab_parallel_entropy(logits, tp, vocab, labelled("entropy")), over_dp()},
          {"kl", vocab_parallel_kl(logits, local.at("logits_q"), tp, vocab, labelled("kl")),
           over_dp()}};
}

}  // namespace

Workload logprob_workload() {
  return {.name = "vocab_parallel_logprob",
          .inputs = draw_rows,
          .plain = plain_functions,
          .sharded = sharded_functions};
}

}  // namespace shardproof::sim::proofs
