// The batching keys of a scenario file: how a dp rank's samples become microbatches.
#include <fmt/format.h>

#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

void set_micro_batch(const Settings& settings, CaseSpec& spec) {
  if (!spec.is(ModelWorkload::kLogprobs)) return;
  const std::string path = "run.logprob_batch_size";
  spec.micro_batch_size = settings.given(path) ? settings.get<int64_t>(path) : 0;
}

// sequence_packing, dynamic_batching, or neither.
void set_kind(const Settings& settings, CaseSpec& spec) {
  const std::string packing = "run.sequence_packing.", dynamic = "run.dynamic_batching.";
  const bool packed = settings.get<bool>(packing + "enabled");
  const bool dynamically = settings.get<bool>(dynamic + "enabled");
  if (packed && dynamically) {
    settings.fail(dynamic + "enabled", "sequence_packing and dynamic_batching are both enabled",
                  "enable one of them");
  }
  const std::string micro =
      spec.is(ModelWorkload::kLogprobs) ? "run.logprob_batch_size" : "run.train_micro_batch_size";
  const std::string chosen = packed ? packing : dynamic;
  const std::string tokens =
      chosen + (spec.is(ModelWorkload::kLogprobs) ? "logprob_mb_tokens" : "train_mb_tokens");
  if ((packed || dynamically) && settings.given(micro)) {
    settings.fail(micro, fmt::format("{} is given beside a token budget's batching", micro),
                  fmt::format("remove it: {} is the budget", tokens));
  }
  spec.batching.kind = packed        ? BatchingKind::kPacked
                       : dynamically ? BatchingKind::kDynamic
                                     : BatchingKind::kFixed;
  if (settings.given(tokens)) spec.batching.token_budget = settings.get<int64_t>(tokens);
  const std::string scored = chosen + "logprob_mb_tokens";
  if (settings.given(scored)) spec.batching.logprob_budget = settings.get<int64_t>(scored);
}

}  // namespace

void set_batching(const Settings& settings, CaseSpec& spec) {
  set_micro_batch(settings, spec);
  set_kind(settings, spec);
}

}  // namespace shardproof::sim
