// Workload vocab_parallel_cross_entropy: the loss of each token, with the vocabulary cut over tp.
//
// Sharded: src/logprob/vocab_parallel_cross_entropy.h. Over dp the samples are cut evenly.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "model/precision.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/passes.h"

namespace shardproof::sim::proofs {
namespace {

Layout of_logits(const Options& options) {
  const int64_t padded = options["padded_vocab"];
  Layout layout = over_dp();
  layout.append(padded == 0 ? Cut::even(2, "tp") : Cut::padded(2, "tp", padded));
  return layout;
}

WorkloadTensors draw_logits(Draw& draw, const Options& options) {
  const int64_t samples = options["samples"], tokens = options["tokens"];
  const int64_t vocab = options["vocab_size"];
  at::Tensor logits = draw.normal({samples, tokens, vocab});
  const at::Tensor peak = draw.integers(vocab, {samples, tokens, 1});
  logits.scatter_add_(-1, peak,
                      at::full({samples, tokens, 1}, options["gap"].get<double>(), at::kDouble));
  return {{"logits", logits, of_logits(options)},
          {"target", draw.integers(vocab, {samples, tokens}), over_dp()}};
}

WorkloadTensors plain_loss(const TensorsByName& full, const Options& options) {
  const at::Tensor logits = full.at("logits");
  const double smoothing = options["label_smoothing"];
  const auto vocab = static_cast<double>(logits.size(-1));
  const at::Tensor logprobs = log_softmax_of_rows(logits.to(wider_type(logits.scalar_type())));
  const at::Tensor target = logprobs.gather(-1, full.at("target").unsqueeze(-1)).squeeze(-1);
  // Smoothing gives the target 1 - smoothing, and an equal part of the rest to each other token.
  const at::Tensor others = (logprobs.sum(-1) - target) / std::max(vocab - 1, 1.0);
  WorkloadTensors out = {{"loss", -((1 - smoothing) * target + smoothing * others)}};
  if (options["read_after"]) out.push_back({"read_after", logits * 2});
  return out;
}

WorkloadTensors sharded_loss(const TensorsByName& local, MeshComm& comm, const Options& options) {
  const at::Tensor own = local.at("logits");
  const int64_t ranks = comm.along("tp").size(), vocab = options["vocab_size"];
  if (ranks > 1 && own.size(-1) == vocab) {
    throw_refused(fmt::format("padded_vocab gives each of {} ranks {} columns, as many as there "
                              "are tokens, and logits with a column for each token count as whole",
                              ranks, vocab),
                  "choose a smaller padded_vocab");
  }
  // A copy, because a leaf may not be overwritten.
  const at::Tensor logits = options["strided"] ? transposed_memory(own) : own * 1;
  const at::Tensor loss = vocab_parallel_cross_entropy(
      logits, local.at("target"), comm.along("tp"), options["vocab_size"],
      {.label_smoothing = options["label_smoothing"],
       .overwrite_logits = options["overwrite_logits"]});
  WorkloadTensors out = {{"loss", loss, over_dp()}};
  if (options["read_after"]) out.push_back({"read_after", logits * 2, of_logits(options)});
  return out;
}

}  // namespace

Workload cross_entropy_workload() {
  return {.name = "vocab_parallel_cross_entropy",
          .inputs = draw_logits,
          .plain = plain_loss,
          .sharded = sharded_loss};
}

}  // namespace shardproof::sim::proofs
