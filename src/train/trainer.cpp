#include "train/trainer.h"

#include <ATen/ATen.h>

#include <set>

#include "base/error.h"
#include "model/precision.h"
#include "parallel/style/gradient_rules.h"
#include "train/discarded_outputs.h"
#include "train/grad_norm.h"
#include "train/held_tokens.h"
#include "train/router_training.h"

namespace shardproof {
namespace {

void add_up(std::vector<LossMetric>& sums, const at::Tensor& loss,
            const std::vector<LossMetric>& metrics) {
  std::vector<LossMetric> addends = {{"loss", loss}};
  addends.insert(addends.end(), metrics.begin(), metrics.end());
  if (sums.empty()) {
    sums = addends;
    for (LossMetric& sum : sums) sum.addend = sum.addend.to(at::kDouble);
    return;
  }
  for (size_t i = 0; i < sums.size(); ++i) sums[i].addend = sums[i].addend + addends[i].addend;
}

std::string head_metric(int64_t depth) { return "mtp_loss." + std::to_string(depth); }

}  // namespace

Trainer::Trainer(const RankSetup& setup, Decoder& model, const ParallelStyles& styles,
                 const TrainOptions& options)
    : setup_(setup),
      model_(model),
      options_(options),
      parameters_(model.parameters()),
      schedule_(options.schedule, options.optimizer.lr),
      loss_scale_(options.loss_scale),
      styles_(styles),
      tokens_(styles.token_cuts(setup.mesh)) {
  options_.norm.device = setup.device;
  routers_ = std::make_shared<RouterTraining>(model, options.side_losses, options.selection_bias,
                                              options.capacity, options.replays_routes, tokens_,
                                              setup.comm, setup.device);
  discard_outputs(model, options.discarded);
  apply_activation_checkpointing(model, options.checkpointed);
  store_ = styles.store({.model = model,
                         .comm = setup.comm,
                         .dtype = setup.dtype,
                         .device = setup.device,
                         .token_axes = tokens_.token_axes(setup.mesh)});
  runner_ = std::make_unique<StepRunner>(setup_, model, styles_, *store_);
  model.materialise(setup.mesh, setup.rank, setup.dtype, setup.device);
  for (const ParameterPtr& parameter : parameters_) masters_.push_back(master_of(*parameter));
  states_.resize(parameters_.size());
}

// The factor of the loss. It cancels the mean of gradients over the ranks that hold tokens. With a
// loss scale, which also multiplies a golden's loss, the reduced float32 gradients are multiplied
// instead, so that the backward in float16 overflows at the same scales as on one device.
double Trainer::grad_factor() const {
  return loss_scale_.enabled() ? loss_scale_.scale() : mean_over();
}

double Trainer::mean_over() const {
  return static_cast<double>(size_of(setup_.mesh, tokens_.token_axes(setup_.mesh)));
}

std::vector<Microbatch> Trainer::microbatches(const Batch& batch, Pass pass) const {
  return microbatches_of(batch, setup_.mesh, setup_.rank, tokens_, options_, pass);
}

std::vector<std::string> Trainer::observed_elsewhere() const {
  std::set<const Slot*> own;
  for (int64_t chunk = 0; chunk < model_.chunk_count(); ++chunk) {
    for (const Slot* slot : model_.slots_of(chunk)) own.insert(slot);
  }
  std::vector<std::string> names;
  for (const Slot* slot : model_.slots()) {
    if (own.contains(slot)) continue;
    for (std::string& name : slot->observed_names()) names.push_back(std::move(name));
  }
  for (std::string& name : runner_->boundaries_elsewhere()) names.push_back(std::move(name));
  if (runner_->holds_last()) return names;
  for (int64_t depth = 0; depth <= model_.config().extra_heads; ++depth) {
    names.push_back(logprobs_name(depth));
  }
  return names;
}

StepRunner::Options Trainer::pass(int64_t step, bool backward) const {
  return {.step = step,
          .backward = backward,
          .temperature = options_.temperature,
          .grad_scale = grad_factor() / loss_scale_.scale()};
}

at::Tensor Trainer::score(const Batch& batch) {
  const at::NoGradGuard no_grad;
  const auto microbatches = this->microbatches(batch, Pass::kScoring);
  const at::Tensor all =
      at::zeros({batch.size(), batch.seq_len()},
                at::TensorOptions().dtype(wider_type(setup_.dtype)).device(setup_.device));
  runner_->run(microbatches, pass(/*step=*/0, /*backward=*/false),
               [&](size_t i, const std::vector<at::Tensor>& logprobs) {
                 const at::Tensor place = microbatches[i].result_map.to(setup_.device);
                 const at::Tensor real = place.ge(0);  // empty for a dummy
                 all.view({-1}).index_copy_(0, place.masked_select(real),
                                            logprobs[0].masked_select(real));
                 return at::Tensor();
               });
  return runner_->from_last(all, "scores");
}

at::Tensor Trainer::score_and_record(const Batch& batch) {
  RouteReplay* replay = routers_->replay();
  if (replay == nullptr) return score(batch);
  replay->begin_record(batch.size(), batch.seq_len());
  at::Tensor scores;
  try {
    scores = score(batch);
  } catch (...) {
    replay->drop_record();
    throw;
  }
  replay->end_record();
  return scores;
}

void Trainer::forget_routes() {
  if (routers_->replay() != nullptr) routers_->replay()->forget();
}

LossCounts Trainer::count(const std::vector<Microbatch>& microbatches) {
  const int64_t heads = model_.config().extra_heads;
  LossCounts counts{.tokens_of_heads = std::vector<double>(static_cast<size_t>(heads))};
  for (const Microbatch& micro : microbatches) {
    const LossCounts here = counts_of(micro.loss_mask, heads);
    counts.tokens += here.tokens;
    counts.sequences += here.sequences;
    counts.pairs += here.pairs;
    for (size_t i = 0; i < here.tokens_of_heads.size(); ++i) {
      counts.tokens_of_heads[i] += here.tokens_of_heads[i];
    }
  }
  std::vector<double> all = {counts.tokens, counts.sequences, counts.pairs};
  all.insert(all.end(), counts.tokens_of_heads.begin(), counts.tokens_of_heads.end());
  const at::Tensor local =
      at::tensor(all, at::TensorOptions().dtype(at::kDouble)).to(setup_.device);
  const at::Tensor global =
      setup_.comm.along(tokens_.sample_axes).all_reduce(local, ReduceOp::kSum, "loss counts").cpu();
  counts = {.tokens = global[0].item<double>(),
            .sequences = global[1].item<double>(),
            .pairs = global[2].item<double>()};
  for (int64_t i = 0; i < heads; ++i) {
    counts.tokens_of_heads.push_back(global[3 + i].item<double>());
  }
  return counts;
}

LossInputs Trainer::loss_inputs(const Microbatch& micro, const at::Tensor& logprobs) const {
  const auto here = [this](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(setup_.device) : tensor;
  };
  return {.logprobs = logprobs,
          .mask = here(micro.loss_mask),
          .prev_logprobs = here(micro.batch.prev_logprobs),
          .reference_logprobs = here(micro.batch.reference_logprobs),
          .advantages = here(micro.batch.advantages)};
}

// The loss is the first of `sums`.
StepMetrics Trainer::reduce_metrics(const std::vector<LossMetric>& sums, const LossCounts& counts) {
  std::vector<at::Tensor> addends;
  for (const LossMetric& sum : sums) addends.push_back(sum.addend.to(at::kDouble));
  const at::Tensor summed =
      setup_.comm.along(tokens_.sample_axes).all_reduce(at::stack(addends), ReduceOp::kSum, "loss");
  const at::Tensor global = runner_->from_last(summed, "loss").cpu();
  StepMetrics metrics{
      .loss = global[0].item<double>(), .tokens = counts.tokens, .sequences = counts.sequences};
  for (size_t i = 1; i < sums.size(); ++i) {
    metrics.of_loss[sums[i].name] = global[static_cast<int64_t>(i)].item<double>();
  }
  return metrics;
}

// The microbatches' losses, and in a pass with backwards their gradients, which are later averaged
// over the axes of tokens: the factor cancels that mean.
std::vector<LossMetric> Trainer::run_with_loss(const std::vector<Microbatch>& microbatches,
                                               const LossCounts& counts,
                                               const StepRunner::Options& options) {
  std::vector<LossMetric> sums;
  runner_->run(microbatches, options, [&](size_t i, const std::vector<at::Tensor>& logprobs) {
    const LossInputs inputs = loss_inputs(microbatches[i], logprobs[0]);
    const at::Tensor addend = loss_addend(inputs, counts, options_.loss);
    std::vector<LossMetric> metrics = loss_metrics(inputs, counts, options_.loss);
    at::Tensor all = addend;
    for (int64_t depth = 1; depth < std::ssize(logprobs); ++depth) {
      const at::Tensor extra =
          head_loss_addend(logprobs[static_cast<size_t>(depth)], inputs.mask, depth, counts);
      all = all + extra * (model_.config().extra_loss_weight /
                           static_cast<double>(model_.config().extra_heads));
      metrics.push_back({head_metric(depth), extra.detach()});
    }
    add_up(sums, addend.detach(), metrics);
    return options.backward ? all * grad_factor() : at::Tensor();
  });
  if (!runner_->holds_last()) {
    const at::Tensor none = at::zeros({}, at::TensorOptions().device(setup_.device));
    std::vector<LossMetric> metrics = no_metrics(options_.loss, setup_.device);
    for (int64_t depth = 1; options.backward && depth <= model_.config().extra_heads; ++depth) {
      metrics.push_back({head_metric(depth), none});
    }
    add_up(sums, none, metrics);
  }
  return sums;
}

StepMetrics Trainer::evaluate(const Batch& batch) {
  const at::NoGradGuard no_grad;
  const auto microbatches = this->microbatches(batch, Pass::kTraining);
  const LossCounts counts = count(microbatches);
  const StepMetrics metrics = reduce_metrics(
      run_with_loss(microbatches, counts, pass(/*step=*/0, /*backward=*/false)), counts);
  observe_scalar(ObservationKind::kLoss, "loss", Phase::kForward, /*step=*/0, metrics.loss);
  observe_metrics(metrics, /*step=*/0);
  return metrics;
}

// Cleans up after a step that throws before finish().
class Trainer::UnfinishedStep {
 public:
  explicit UnfinishedStep(Trainer& trainer) : trainer_(trainer) { ++trainer_.step_; }
  ~UnfinishedStep() {
    if (!finished_) trainer_.abandon_step();
  }
  UnfinishedStep(const UnfinishedStep&) = delete;
  UnfinishedStep& operator=(const UnfinishedStep&) = delete;
  void finish() { finished_ = true; }

 private:
  Trainer& trainer_;
  bool finished_ = false;
};

// Does not wait for other ranks, which may be elsewhere in the program.
void Trainer::abandon_step() {
  --step_;
  for (Slot* slot : model_.slots()) slot->layer->drop_backward();
  for (const ParameterPtr& parameter : parameters_) {
    parameter->tensor.mutable_grad() = at::Tensor();
  }
  store_->abandon_step();
  runner_->abandon();
  routers_->end();
}

Trainer::OneSchedulerStep::~OneSchedulerStep() {
  if (trainer_.step_ > before_) ++trainer_.schedule_steps_;
}

StepMetrics Trainer::step(const Batch& batch) {
  const OneSchedulerStep scheduled(*this);
  return step_at_same_rate(batch);
}

StepMetrics Trainer::step_at_same_rate(const Batch& batch) {
  UnfinishedStep unfinished(*this);
  const auto microbatches = this->microbatches(batch, Pass::kTraining);
  const LossCounts counts = count(microbatches);
  routers_->begin(microbatches, batch, grad_factor(), first_sample_);
  const std::vector<LossMetric> sums =
      run_with_loss(microbatches, counts, pass(step_, /*backward=*/true));
  for (Slot* slot : model_.slots()) slot->layer->finish_backward();
  // Finishes before the ranks wait for each other elsewhere: all ranks hold at once what one holds
  // while it waits.
  const std::vector<at::Tensor> grads = finish_gradients();
  StepMetrics metrics = reduce_metrics(sums, counts);
  routers_->end();
  metrics.of_loss.merge(routers_->finish());
  observe_scalar(ObservationKind::kLoss, "loss", Phase::kForward, step_, metrics.loss);
  metrics.skipped = grads.empty();
  if (!metrics.skipped) {
    const at::Tensor norm = grad_norm(parameters_, grads, setup_.comm, options_.norm);
    metrics.grad_norm = norm.item<double>();
    observe_scalar(ObservationKind::kGradNorm, "grad_norm", Phase::kStep, step_, metrics.grad_norm);
    clip_grads(grads, norm, options_.max_norm);
  }
  update(grads, muon_steps(grads));
  unfinished.finish();  // an exception after this leaves the step done
  if (!metrics.skipped && !options_.schedule.stages.empty()) {
    observe_scalar(ObservationKind::kRate, "lr", Phase::kStep, step_,
                   schedule_.after(schedule_steps_));
  }
  observe_state();
  observe_metrics(metrics, step_);
  if (routers_->drops()) {
    observe_scalar(ObservationKind::kCount, "metric.dropped_routes", Phase::kStep, step_,
                   static_cast<double>(routers_->dropped()));
  }
  return metrics;
}

void Trainer::observe_metrics(const StepMetrics& metrics, int64_t step) {
  observe_scalar(ObservationKind::kCount, "metric.tokens", Phase::kStep, step, metrics.tokens);
  observe_scalar(ObservationKind::kCount, "metric.sequences", Phase::kStep, step,
                 metrics.sequences);
  for (const auto& [name, value] : metrics.of_loss) {
    const std::string observed = "metric." + name;
    if (setup_.dtype != at::kDouble && is_of_decisions(observed)) continue;
    observe_scalar(ObservationKind::kMetric, observed, Phase::kStep, step, value);
  }
}

// Empty when a gradient overflowed on any rank.
std::vector<at::Tensor> Trainer::finish_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads = store_->take_gradients();
  apply_gradient_rules(parameters_, grads, setup_.comm, tokens_.token_axes(setup_.mesh),
                       setup_.device);
  store_->average(grads);
  if (loss_scale_.enabled()) {
    observe_scalar(ObservationKind::kLossScale, "metric.loss_scale", Phase::kStep, step_,
                   loss_scale_.scale());
    const bool overflow =
        loss_scale_.unscale(grads, setup_.comm.world(), setup_.device, mean_over());
    observe_scalar(ObservationKind::kSkipped, "metric.skipped", Phase::kStep, step_,
                   overflow ? 1 : 0);
    if (overflow) return {};
  }
  for (size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i]->trainable)
      observe_step(ObservationKind::kGradient, *parameters_[i], grads[i]);
  }
  return grads;
}

void Trainer::set_batching(const BatchingOptions& batching, int64_t micro_batch_size) {
  options_.batching = batching;
  options_.micro_batch_size = micro_batch_size;
}

void Trainer::observe_step(ObservationKind kind, const Parameter& parameter,
                           const at::Tensor& tensor, const Layout* layout, const at::Tensor& leaf) {
  if (!tensor.defined() || !setup_.probe.listens(Phase::kStep)) return;
  setup_.probe.observe({.kind = kind,
                        .name = observed_name(kind, parameter.name),
                        .phase = Phase::kStep,
                        .step = step_,
                        .tensor = tensor,
                        .layout = layout ? *layout : parameter.layout,
                        .leaf = leaf});
}

void Trainer::observe_scalar(ObservationKind kind, const std::string& name, Phase phase,
                             int64_t step, double value) {
  if (!setup_.probe.listens(phase)) return;
  setup_.probe.observe({.kind = kind,
                        .name = name,
                        .phase = phase,
                        .step = step,
                        .tensor = at::scalar_tensor(value, at::kDouble)});
}

}  // namespace shardproof
