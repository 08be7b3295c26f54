#include "golden/single_device.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "golden/learning_rate.h"
#include "golden/losses.h"
#include "golden/witness_optimizer.h"
#include "model/decoder.h"

namespace shardproof::golden {
namespace {

class SingleDevice {
 public:
  SingleDevice(const sim::CaseSpec& spec, const CaseData& data, at::ScalarType dtype, Probe& probe)
      : spec_(spec), batch_(data.batch), probe_(probe), model_(data.config, data.weights) {
    model_.materialise(Mesh(), /*rank=*/0, dtype, at::kCPU);
    parameters_ = model_.parameters();
    token_map_ = at::arange(batch_.size() * batch_.seq_len(), at::kLong)
                     .view({batch_.size(), batch_.seq_len()});
    positions_ = at::arange(batch_.seq_len(), at::kLong).expand_as(token_map_);
  }

  void score() {
    const at::NoGradGuard no_grad;
    logprobs(/*step=*/0);
  }

  void train() {
    std::vector<at::Tensor> masters;
    for (const ParameterPtr& parameter : parameters_) masters.push_back(master_of(*parameter));
    WitnessOptimizer optimizer(spec_.optimizer, masters);
    for (int64_t step = 1; step <= spec_.steps; ++step) {
      const at::Tensor now = logprobs(step);
      const at::Tensor loss = dense_loss(now, batch_, spec_.loss);
      observe("loss", Phase::kForward, step, loss);
      loss.backward();
      const std::vector<at::Tensor> grads = take_gradients(step);
      const double rate = learning_rate(spec_.optimizer, step - 1);
      const double norm = optimizer.step(grads, rate);
      observe("grad_norm", Phase::kStep, step, at::scalar_tensor(norm, at::kDouble));
      if (!spec_.optimizer.schedulers.empty()) {
        observe("lr", Phase::kStep, step, at::scalar_tensor(rate, at::kDouble));
      }
      for (size_t i = 0; i < parameters_.size(); ++i) {
        const Parameter& parameter = *parameters_[i];
        refresh_leaf(parameter);
        for (const auto& [name, state] : optimizer.state_of(i)) {
          observe(name + "." + parameter.name, Phase::kStep, step, state);
        }
        observe("param." + parameter.name, Phase::kStep, step, masters[i]);
      }
      for (const Metric& metric : dense_metrics(now, batch_, spec_.loss)) {
        // In lower precisions a rounding turns decisions: a token is clipped or is not.
        const bool counts = metric.name == "tokens" || metric.name == "sequences";
        if (!counts && spec_.precision != "float64") continue;
        observe("metric." + metric.name, Phase::kStep, step,
                at::scalar_tensor(metric.value, at::kDouble));
      }
    }
  }

 private:
  at::Tensor logprobs(int64_t step) {
    const StepContext context{
        .probe = probe_, .step = step, .token_map = token_map_, .positions = positions_};
    const at::Tensor logits = model_.forward(batch_.input_ids, context) / spec_.loss.temperature;
    const at::Tensor logprobs = dense_logprobs(logits, batch_);
    observe("logprobs", Phase::kForward, step, logprobs, token_map_);
    return logprobs;
  }

  std::vector<at::Tensor> take_gradients(int64_t step) {
    std::vector<at::Tensor> grads;
    for (const ParameterPtr& parameter : parameters_) {
      grads.push_back(gradient_of(*parameter));
      parameter->tensor.mutable_grad() = at::Tensor();
    }
    for (size_t i = parameters_.size(); i-- > 0;) {
      observe("grad." + parameters_[i]->name, Phase::kStep, step, grads[i]);
    }
    return grads;
  }

  void observe(const std::string& name, Phase phase, int64_t step, const at::Tensor& tensor,
               const at::Tensor& token_map = {}) {
    if (!probe_.listens(phase)) return;
    probe_.observe(
        {.name = name, .phase = phase, .step = step, .tensor = tensor, .token_map = token_map});
  }

  const sim::CaseSpec& spec_;
  const Batch& batch_;
  Probe& probe_;
  Decoder model_;
  std::vector<ParameterPtr> parameters_;
  at::Tensor token_map_, positions_;  // [B, S]
};

}  // namespace

CaseData load_case_data(const sim::CaseSpec& spec) {
  CaseData data;
  data.config = ModelConfig::from_json(spec.model);
  data.weights = spec.weights_folder.empty() ? seeded_weights(data.config, spec.seed)
                                             : load_weights(spec.weights_folder, data.config);
  const sim::DataSpec& asked = spec.data;
  data.batch = asked.file.empty() ? seeded_batch({.batch_size = asked.batch_size,
                                                  .seq_len = asked.seq_len,
                                                  .lengths = asked.lengths,
                                                  .mask_probability = asked.mask_probability,
                                                  .dropped_samples = asked.dropped_samples,
                                                  .vocab_size = data.config.vocab_size,
                                                  .seed = spec.seed})
                                  : load_batch(asked.file, data.config.vocab_size);
  return data;
}

void run_single_device(const sim::CaseSpec& spec, const CaseData& data, at::ScalarType dtype,
                       Probe& probe) {
  if (spec.workload != "train" && spec.workload != "logprobs") {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("workload \"{}\" has no golden", spec.workload),
                 .fix = "known are train, logprobs"});
  }
  if (spec.workload == "train" && spec.steps < 1) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("steps={} is not positive", spec.steps),
                 .fix = "train at least one step, or use workload logprobs"});
  }
  SingleDevice run(spec, data, dtype, probe);
  if (spec.workload == "train") {
    run.train();
  } else {
    run.score();
  }
}

}  // namespace shardproof::golden
