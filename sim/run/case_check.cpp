#include "sim/run/case_check.h"

#include "base/error.h"
#include "model/config.h"
#include "parallel/tp/plan.h"
#include "sim/case/names.h"

namespace shardproof::sim {

namespace {

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
}

}  // namespace shardproof::sim
