#include "sim/run/case_check.h"

#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "model/config.h"
#include "parallel/tp/plan.h"
#include "sim/case/names.h"

namespace shardproof::sim {

namespace {

double parameter_count(const ModelConfig& config) {
  const auto hidden = static_cast<double>(config.hidden_size);
  const auto head_dim = static_cast<double>(config.head_dim);
  const double attention =
      2.0 * hidden * head_dim *
      static_cast<double>(config.num_attention_heads + config.num_key_value_heads);
  const double mlp = 3.0 * hidden * static_cast<double>(config.intermediate_size);
  const double embeddings =
      hidden * static_cast<double>(config.vocab_size) * (config.tie_word_embeddings ? 1 : 2);
  return static_cast<double>(config.num_hidden_layers) * (attention + mlp + 2 * hidden) +
         embeddings;
}

// The golden holds weights, a gradient and optimizer state in float64; the ranks hold as much.
void check_memory(const ModelConfig& config) {
  constexpr double kCopies = 4;
  const double needed = parameter_count(config) * 8 * kCopies;
  const double there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                       static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  if (needed <= there) return;
  constexpr double kGiB = 1 << 30;
  throw Error(
      {.kind = ErrorKind::kBadInput,
       .what = fmt::format("a model of {:.3g} parameters needs {:.1f} GiB for its golden alone; "
                           "this machine has {:.1f} GiB",
                           parameter_count(config), needed / kGiB, there / kGiB),
       .fix = "choose smaller sizes"});
}

void check_plan(const CaseSpec& spec, const ModelConfig& config) {
  try {
    resolve_plan(config, {.sequence_parallel = spec.parallel.sequence_parallel,
                          .custom_plan = spec.parallel.custom_plan});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRefused) throw;  // the ranks will refuse it
  }
}

}  // namespace

void check_case(const CaseSpec& spec) {
  spec.parallel.mesh();
  // Its options were checked when the scenario was read.
  if (!is_model_workload(spec.workload)) return;
  const ModelConfig config = ModelConfig::from_json(spec.model);
  check_plan(spec, config);
  for (const StageSpec& stage : spec.stages) stage.parallel.mesh();
  if (spec.judged) check_memory(config);
}

}  // namespace shardproof::sim
