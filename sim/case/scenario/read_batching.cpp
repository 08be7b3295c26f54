#include "sim/case/scenario/read_batching.h"

#include <fmt/format.h>

namespace shardproof::sim {
namespace {

void set_micro_batch(const Settings& settings, CaseSpec& spec) {
  const std::string path =
      spec.workload == "logprobs" ? "run.logprob_batch_size" : "run.train_micro_batch_size";
  if (settings.given(path)) spec.micro_batch_size = settings.get<int64_t>(path);
}

// sequence_packing or dynamic_batching, or neither.
void set_batching(const Settings& settings, CaseSpec& spec) {
  const std::string packing = "run.sequence_packing.", dynamic = "run.dynamic_batching.";
  const bool packed = settings.get<bool>(packing + "enabled");
  const bool dynamically = settings.get<bool>(dynamic + "enabled");
  if (packed && dynamically) {
    settings.fail(dynamic + "enabled", "sequence_packing and dynamic_batching are both enabled",
                  "enable one of them");
  }
  const std::string micro =
      spec.workload == "logprobs" ? "run.logprob_batch_size" : "run.train_micro_batch_size";
  if ((packed || dynamically) && settings.given(micro)) {
    settings.fail(micro, fmt::format("{} is given beside a token budget's batching", micro),
                  "remove it, or say the budget in mb_tokens");
  }
  const std::string chosen = packed ? packing : dynamic;
  const std::string tokens =
      chosen + (spec.workload == "logprobs" ? "logprob_mb_tokens" : "train_mb_tokens");
  spec.batching.kind = packed ? "packed" : dynamically ? "dynamic" : "fixed";
  if (settings.given(tokens)) spec.batching.tokens = settings.get<int64_t>(tokens);
  const std::string scored = chosen + "logprob_mb_tokens";
  if (settings.given(scored)) spec.batching.logprob_tokens = settings.get<int64_t>(scored);
  spec.batching.algorithm = settings.get<std::string>(packing + "algorithm");
  spec.batching.length_round = settings.get<int64_t>(dynamic + "sequence_length_round");
}

}  // namespace

void read_batching(const Settings& settings, CaseSpec& spec) {
  set_micro_batch(settings, spec);
  set_batching(settings, spec);
}

}  // namespace shardproof::sim
