#include "golden/plain_model.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/seed.h"
#include "golden/extra_heads.h"
#include "golden/losses.h"
#include "golden/written_out.h"
#include "model/precision.h"

namespace shardproof::golden {
namespace {

// About as many as ranks that share positions.
constexpr int64_t kMostParts = 16;

// Whether all gradients of activations are finite.
class FiniteProbe final : public Probe {
 public:
  bool listens(Phase phase) const override { return phase == Phase::kBackward; }
  void observe(const Observation& observation) override {
    finite_ = finite_ && at::isfinite(observation.tensor).all().item<bool>();
  }
  bool finite() const { return finite_; }

 private:
  bool finite_ = true;
};

Decoder written_out(const CaseData& data) {
  Decoder model(data.config, data.weights);
  write_out(model);
  if (data.config.extra_heads == 0) return model;
  repeat_first_head(model);
  // The heads are written out, and lie between the two parts.
  std::vector<Segment> layers = model.segments();
  const Segment head = layers.back();
  layers.resize(layers.size() - 1 - static_cast<size_t>(data.config.extra_heads));
  model.set_chunks({layers, {head}});
  return model;
}

bool all_finite(const std::vector<at::Tensor>& grads) {
  return std::all_of(grads.begin(), grads.end(), [](const at::Tensor& grad) {
    return !grad.defined() || at::isfinite(grad).all().item<bool>();
  });
}

}  // namespace

PlainModel::PlainModel(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                       Probe& probe)
    : spec_(spec),
      probe_(probe),
      perturbation_(options.perturbation),
      model_(written_out(data)),
      terms_(options.parted_skips ? watch_weight_terms(model_) : nullptr),
      side_terms_(spec, model_),
      limited_experts_(spec, model_),
      kept_routes_(spec, model_),
      router_biases_(spec, model_),
      skips_(spec, /*finds_them=*/options.dtype == at::kHalf, options.overflows),
      parted_skips_(options.parted_skips) {
  if (options.routes != nullptr) options.routes->wrap(model_);
  model_.freeze(spec.frozen);
  if (perturbation_) perturbation_->wrap(model_);
  if (sim::has_stages(spec)) model_.observe_boundaries();
  model_.materialise(Mesh(), /*rank=*/0, options.dtype, at::kCPU);
  parameters_ = model_.parameters();
  for (const ParameterPtr& parameter : parameters_) {
    masters_.push_back(master_of(*parameter));
    if (!sim::has_initial(spec)) continue;
    observe(ObservationKind::kInitial, observed_name(ObservationKind::kInitial, parameter->name),
            Phase::kStep, /*step=*/0, masters_.back());
  }
}

WitnessOptimizer PlainModel::optimizer() const {
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : parameters_) names.push_back(parameter->name);
  return {spec_.optimizer, masters_, std::move(names)};
}

void PlainModel::set_masters(const std::vector<at::Tensor>& masters) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < masters.size(); ++i) {
    masters_[i].copy_(masters[i]);
    refresh_leaf(*parameters_[i]);
  }
}

void PlainModel::add_noise(double std, int64_t seed) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i]->name;
    const auto generator = at::detail::createCPUGenerator(stream_seed(seed, "noise on " + name));
    const auto drawn = at::randn(masters_[i].sizes(), generator, at::dtype(at::kDouble));
    if (parameters_[i]->trainable) {
      masters_[i].copy_(masters_[i] + (drawn * std).to(masters_[i].scalar_type()));
    }
    refresh_leaf(*parameters_[i]);
    observe(ObservationKind::kParameter, "param." + name, Phase::kStep, /*step=*/0, masters_[i]);
  }
}

at::Tensor PlainModel::score(const Batch& batch, int64_t step) {
  const at::NoGradGuard no_grad;
  return logprobs(batch, step, probe_);
}

void PlainModel::evaluate(const Batch& batch, int64_t step) {
  const at::Tensor now = score(batch, step);
  observe(ObservationKind::kLoss, "loss", Phase::kForward, step,
          dense_loss(now, batch, spec_.loss));
  observe_metrics(now, batch, step);
}

void PlainModel::train(const Batch& batch, int64_t step, WitnessOptimizer& optimizer, double rate) {
  limited_experts_.begin(batch);
  std::vector<at::Tensor> of_heads;
  const at::Tensor now = logprobs(batch, step, probe_, &of_heads);
  const int64_t dropped = limited_experts_.end();
  const at::Tensor doubt = perturbation_ ? perturbation_->doubt(now, step) : at::Tensor();
  const at::Tensor loss = dense_loss(now, batch, spec_.loss, doubt);
  observe(ObservationKind::kLoss, "loss", Phase::kForward, step, loss);
  const auto scalar = [](double value) { return at::scalar_tensor(value, at::kDouble); };
  if (skips_.active())
    observe(ObservationKind::kLossScale, "metric.loss_scale", Phase::kStep, step,
            scalar(skips_.scale()));
  if (terms_) terms_->reset();
  const SideTerms::Terms side = side_terms_.of(batch);
  observe_side_parts(batch, step);
  const HeadLosses heads = dense_head_losses(of_heads, batch, model_.config().extra_loss_weight);
  at::Tensor all = loss;
  for (const at::Tensor& more : {side.sum, heads.sum}) {
    if (more.defined()) all = all + more;
  }
  (all * skips_.scale()).backward();
  if (terms_) terms_->watches = false;
  std::vector<at::Tensor> grads = take_gradients(step);
  if (parted_skips_ && parts_decide(batch, step, !all_finite(grads))) {
    parted_skips_->push_back(step);
  }
  const bool skipped = skips_.unscale(grads);
  if (skips_.active())
    observe(ObservationKind::kSkipped, "metric.skipped", Phase::kStep, step,
            scalar(skipped ? 1 : 0));
  if (!skipped) {
    for (size_t i = parameters_.size(); i-- > 0;) {
      if (!grads[i].defined()) continue;
      const std::string& name = parameters_[i]->name;
      observe(ObservationKind::kGradient, "grad." + name, Phase::kStep, step, grads[i]);
      if (perturbation_) grads[i] = perturbation_->doubted_gradient(grads[i], name, step);
    }
    const double norm = optimizer.step(std::move(grads), rate);
    observe(ObservationKind::kGradNorm, "grad_norm", Phase::kStep, step, scalar(norm));
    for (size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& matrix = optimizer.made_orthogonal(i);
      if (!matrix.defined()) continue;
      observe(ObservationKind::kWholeMatrix, "whole." + parameters_[i]->name, Phase::kStep, step,
              matrix);
    }
    if (!spec_.optimizer.schedulers.empty())
      observe(ObservationKind::kRate, "lr", Phase::kStep, step, scalar(rate));
    for (const auto& [name, move] : router_biases_.update(batch, parameters_, masters_)) {
      observe(ObservationKind::kOutput, "param." + name + ".move", Phase::kRecompute, step, move);
    }
  }
  for (const ParameterPtr& parameter : parameters_) refresh_leaf(*parameter);
  observe_state(step, optimizer);
  observe_metrics(now, batch, step);
  observe_values(side.values, step);
  observe_values(heads.values, step);
  if (limited_experts_.active()) {
    observe(ObservationKind::kCount, "metric.dropped_routes", Phase::kStep, step, scalar(dropped));
  }
}

void PlainModel::observe_values(const std::map<std::string, double>& values, int64_t step) {
  for (const auto& [name, value] : values) {
    observe(ObservationKind::kMetric, "metric." + name, Phase::kStep, step,
            at::scalar_tensor(value, at::kDouble));
  }
}

// Beside the golden, for what the judge says about a router's gradient.
void PlainModel::observe_side_parts(const Batch& batch, int64_t step) {
  if (spec_.precision != Precision::kFloat64 || !probe_.listens(Phase::kRecompute)) return;
  for (const SideTerms::Part& part : side_terms_.parts(batch)) {
    observe(ObservationKind::kInputGradient, part.name, Phase::kRecompute, step, part.gradient);
  }
}

void PlainModel::observe_state(int64_t step, const WitnessOptimizer& optimizer) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const std::string& name = parameters_[i]->name;
    for (const auto& [kind, state] : optimizer.state_of(i)) {
      observe(kind, observed_name(kind, name), Phase::kStep, step, state);
    }
    observe(ObservationKind::kParameter, "param." + name, Phase::kStep, step, masters_[i]);
  }
}

void PlainModel::observe_metrics(const at::Tensor& logprobs, const Batch& batch, int64_t step) {
  for (const Metric& metric : dense_metrics(logprobs, batch, spec_.loss)) {
    const bool counts = metric.name == "tokens" || metric.name == "sequences";
    const std::string name = "metric." + metric.name;
    if (spec_.precision != Precision::kFloat64 && is_of_decisions(name)) continue;
    observe(counts ? ObservationKind::kCount : ObservationKind::kMetric, name, Phase::kStep, step,
            at::scalar_tensor(metric.value, at::kDouble));
  }
}

at::Tensor PlainModel::logprobs(const Batch& batch, int64_t step, Probe& probe,
                                std::vector<at::Tensor>* of_heads) {
  const at::Tensor token_map =
      at::arange(batch.size() * batch.seq_len(), at::kLong).view({batch.size(), batch.seq_len()});
  const at::Tensor positions = at::arange(batch.seq_len(), at::kLong).expand_as(token_map);
  const StepContext context{
      .probe = probe, .step = step, .token_map = token_map, .positions = positions};
  // Divided in the wider type: the gradient of what is divided may not fit the narrow one.
  const auto scaled = [this](const at::Tensor& narrow) {
    return narrow.to(wider_type(narrow.scalar_type())) / spec_.loss.temperature;
  };
  const at::Tensor stream = model_.forward(/*chunk=*/0, batch.input_ids, context);
  const bool in_parts = model_.chunk_count() > 1;
  const at::Tensor logits =
      scaled(in_parts ? model_.forward(/*chunk=*/1, stream, context) : stream);
  const auto moves = [&](const at::Tensor& rows, int64_t depth) {
    return perturbation_ ? perturbation_->row_moves(rows, fmt::format("{} {}", depth, step))
                         : at::Tensor();
  };
  const at::Tensor logprobs = dense_logprobs(logits, batch, moves(logits, 0));
  observe_logprobs(logprobs, batch, /*depth=*/0, step, probe);
  if (of_heads == nullptr || !in_parts) return logprobs;
  for (const at::Tensor& narrow : dense_head_logits(model_, stream, batch, context)) {
    const int64_t depth = std::ssize(*of_heads) + 1;
    const at::Tensor of_head = scaled(narrow);
    of_heads->push_back(dense_head_logprobs(of_head, batch, depth, moves(of_head, depth)));
    observe_logprobs(of_heads->back(), batch, depth, step, probe);
  }
  return logprobs;
}

void PlainModel::observe_logprobs(const at::Tensor& logprobs, const Batch& batch, int64_t depth,
                                  int64_t step, Probe& probe) const {
  if (!probe.listens(Phase::kForward)) return;
  probe.observe({.kind = ObservationKind::kLogprobs,
                 .name = depth == 0 ? "logprobs" : fmt::format("logprobs.{}", depth),
                 .phase = Phase::kForward,
                 .step = step,
                 .tensor = logprobs,
                 .token_map = at::arange(batch.size() * batch.seq_len(), at::kLong)
                                  .view({batch.size(), batch.seq_len()})});
}

bool PlainModel::parts_decide(const Batch& batch, int64_t step, bool overflow) {
  // Terms that cancel in the whole sum may overflow in a part of it.
  const bool parts_may_overflow = overflow || terms_->most > kLargestHalf;
  if (overflow ? only_a_sum_overflows(batch, step) : terms_->shares_overflow) return true;
  return overflows_in_parts(batch, step, 1) != overflow ||
         (parts_may_overflow && overflows_in_parts(batch, step, kMostParts) != overflow);
}

bool PlainModel::only_a_sum_overflows(const Batch& batch, int64_t step) {
  if (!terms_->only_as_summed()) return false;
  const auto overflows = [&](double scale, Probe& probe) {
    const at::Tensor now = logprobs(batch, step, probe);
    (dense_loss(now, batch, spec_.loss) * scale).backward();
    return !all_finite(take_gradients(step));
  };
  FiniteProbe activations;
  overflows(skips_.scale(), activations);
  NoProbe nobody;
  return activations.finite() && !overflows(skips_.scale() / kMostParts, nobody);
}

bool PlainModel::overflows_in_parts(const Batch& batch, int64_t step, int64_t parts) {
  NoProbe nobody;
  const at::Tensor whole = logprobs(batch, step, nobody).detach().requires_grad_(true);
  (dense_loss(whole, batch, spec_.loss) * skips_.scale()).backward();
  const at::Tensor& factors = whole.grad();
  const int64_t columns = (batch.seq_len() + parts - 1) / parts;
  bool finite = true;
  for (int64_t sample = 0; sample < batch.size() && finite; ++sample) {
    const at::Tensor row = logprobs(batch.slice(sample, 1), step, nobody);
    if (!row.requires_grad()) return false;
    for (int64_t first = 0; first < batch.seq_len() && finite; first += columns) {
      const int64_t count = std::min(columns, batch.seq_len() - first);
      at::Tensor part = at::zeros_like(row);
      part.narrow(1, first, count).copy_(factors.narrow(0, sample, 1).narrow(1, first, count));
      torch::autograd::backward({row}, {part}, /*retain_graph=*/true);
      finite = all_finite(take_gradients(step));
    }
  }
  return !finite;
}

std::vector<at::Tensor> PlainModel::take_gradients(int64_t step) {
  std::vector<at::Tensor> grads;
  for (const ParameterPtr& parameter : parameters_) {
    if (!parameter->trainable) {
      grads.emplace_back();
      continue;
    }
    at::Tensor& raw = parameter->tensor.mutable_grad();
    if (perturbation_ && raw.defined()) {
      raw = perturbation_->moved(raw, fmt::format("grad.{} {}", parameter->name, step));
    }
    grads.push_back(gradient_of(*parameter));
    raw = at::Tensor();
  }
  return grads;
}

void PlainModel::observe(ObservationKind kind, const std::string& name, Phase phase, int64_t step,
                         const at::Tensor& tensor) {
  if (!probe_.listens(phase)) return;
  probe_.observe({.kind = kind, .name = name, .phase = phase, .step = step, .tensor = tensor});
}

}  // namespace shardproof::golden
