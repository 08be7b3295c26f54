#include "golden/single_device.h"

#include <fmt/format.h>

#include "base/error.h"
#include "golden/learning_rate.h"
#include "golden/own_draws.h"
#include "golden/plain_model.h"
#include "golden/policy_life.h"
#include "sim/case/inputs/case_data.h"

namespace shardproof::golden {
namespace {

void train(const sim::CaseSpec& spec, const Batch& batch, PlainModel& model) {
  if (spec.noise_std > 0) model.add_noise(spec.noise_std, spec.seed);
  WitnessOptimizer optimizer = model.optimizer();
  for (int64_t step = 1; step <= spec.steps; ++step) {
    model.train(batch, step, optimizer, learning_rate(spec.optimizer, step - 1));
  }
}

}  // namespace

CaseData load_case_data(const sim::CaseSpec& spec) {
  CaseData data;
  data.config = sim::load_case_config(spec);
  data.weights = sim::load_case_weights(spec, data.config);
  if (spec.init == WeightInit::kOwnStream) {
    data.weights = with_own_draws(*data.weights, data.config, spec.parallel.tp, spec.seed);
  }
  data.batch = sim::load_case_batch(spec, data.config.vocab_size);
  return data;
}

void run_single_device(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                       Probe& probe) {
  if (spec.is(sim::ModelWorkload::kPolicy)) return run_policy_life(spec, data, options, probe);
  if (!spec.is(sim::ModelWorkload::kTrain) && !spec.is(sim::ModelWorkload::kLogprobs)) {
    throw_bad_input(fmt::format("workload \"{}\" has no golden", spec.workload),
                    "known are train, logprobs, policy");
  }
  if (spec.is(sim::ModelWorkload::kTrain) && spec.steps < 1) {
    throw_bad_input(fmt::format("steps={} is not positive", spec.steps),
                    "train at least one step, or use workload logprobs");
  }
  PlainModel model(spec, data, options, probe);
  if (spec.is(sim::ModelWorkload::kTrain)) {
    train(spec, data.batch, model);
  } else {
    const at::Tensor scores = model.score(data.batch, /*step=*/0);
    if (spec.sample_rows == 0) {  // else the golden scores the sampled rows alone
      model.observe(ObservationKind::kScores, "scores", Phase::kStep, /*step=*/0, scores);
    }
  }
}

}  // namespace shardproof::golden
