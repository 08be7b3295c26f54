#include "train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "logprob/vocab_parallel_logprob.h"
#include "model/precision.h"
#include "parallel/style/gradient_rules.h"
#include "train/discarded_outputs.h"
#include "train/grad_norm.h"
#include "train/held_tokens.h"

namespace shardproof {
namespace {

// ids[next], and 0 where `next` is -1 because the sequence ends.
at::Tensor next_tokens(const at::Tensor& ids, const at::Tensor& next) {
  return ids.gather(1, next.clamp_min(0)).masked_fill_(next.lt(0), 0);
}

// The axes whose ranks compute the same tokens; an axis of one rank if there is no other.
std::vector<std::string> model_axes(const Mesh& mesh, const std::vector<std::string>& token_axes) {
  std::vector<std::string> axes;
  for (const auto& [axis, size] : mesh.axes()) {
    const bool tokens = std::find(token_axes.begin(), token_axes.end(), axis) != token_axes.end();
    if (size > 1 && !tokens) axes.push_back(axis);
  }
  if (axes.empty()) axes.push_back("tp");
  return axes;
}

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
  options_.norm.model_axes = model_axes(setup.mesh, tokens_.token_axes(setup.mesh));
  discard_outputs(model, options.discarded);
  apply_activation_checkpointing(model, options.checkpointed);
  store_ = styles.store({.model = model,
                         .comm = setup.comm,
                         .dtype = setup.dtype,
                         .device = setup.device,
                         .token_axes = tokens_.token_axes(setup.mesh)});
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

// [b, S]: the logprob of each token given those before it. The shift comes before the cut because
// the successor of a rank's last token is on another rank. Each sequence of a packed row is shifted
// separately.
at::Tensor Trainer::sequence_logprobs(const Microbatch& micro, const ContextCut& cut,
                                      const StepContext& context) {
  const at::Tensor ids = micro.input_ids.to(setup_.device);
  const at::Tensor logits = model_.forward(cut.local(ids), context);
  const LogprobOptions scoring{.temperature = options_.temperature};
  const int64_t vocab_size = model_.config().vocab_size, seq_len = micro.batch.seq_len();
  Communicator& tp = setup_.comm.along("tp");
  // [b, n] to [b, S]: rows shorter than the batch's have no scored token after their end.
  const auto to_batch = [seq_len](const at::Tensor& rows) {
    return at::constant_pad_nd(rows, {0, seq_len - rows.size(1)}, 0);
  };
  if (cut.whole() && !micro.plan) {
    return to_batch(next_token_logprobs(logits, ids, tp, vocab_size, scoring));
  }
  const at::Tensor targets =
      micro.plan ? next_tokens(ids, packed_next(*micro.plan).to(setup_.device))
                 : at::constant_pad_nd(ids.narrow(1, 1, ids.size(1) - 1), {0, 1}, 0);
  const at::Tensor local =
      vocab_parallel_logprob(logits, cut.local(targets), tp, vocab_size, scoring);
  const at::Tensor gathered = cut.gather(local, setup_.comm, "logprobs");
  if (micro.plan) return at::constant_pad_nd(unpack(gathered, *micro.plan, seq_len - 1), {1, 0}, 0);
  return to_batch(at::constant_pad_nd(gathered.narrow(1, 0, gathered.size(1) - 1), {1, 0}, 0));
}

at::Tensor Trainer::logprobs_of(const Microbatch& micro, int64_t index, int64_t step) {
  return logprobs_of(micro, index, step, context_cut_of(micro, setup_.mesh, setup_.rank, tokens_));
}

at::Tensor Trainer::logprobs_of(const Microbatch& micro, int64_t index, int64_t step,
                                const ContextCut& cut) {
  const StepContext context{
      .probe = setup_.probe,
      .step = step,
      .microbatch = index,
      .token_map = cut.local(micro.token_map),
      .positions = cut.local(micro.positions).to(setup_.device),
      .grad_scale = grad_factor() / loss_scale_.scale(),
      .sequence_ids = micro.plan ? packed_sequence_ids(*micro.plan).squeeze(0) : at::Tensor(),
      .sequence_layout = &cut.ring()};
  held_.push_back({.rows = micro.token_map, .held = context.token_map});
  at::Tensor logprobs = sequence_logprobs(micro, cut, context);
  logprobs = at::where(micro.scored.to(setup_.device), logprobs, at::zeros_like(logprobs));
  if (setup_.probe.listens(Phase::kForward)) {
    setup_.probe.observe({.name = "logprobs",
                          .phase = Phase::kForward,
                          .step = step,
                          .microbatch = index,
                          .tensor = logprobs,
                          .token_map = micro.result_map});
  }
  return logprobs;
}

at::Tensor Trainer::score(const Batch& batch) {
  const at::NoGradGuard no_grad;
  held_.clear();
  const auto microbatches = this->microbatches(batch, Pass::kScoring);
  const at::Tensor all =
      at::zeros({batch.size(), batch.seq_len()},
                at::TensorOptions().dtype(wider_type(setup_.dtype)).device(setup_.device));
  const std::shared_ptr<void> whole = store_->hold_whole();
  for (size_t i = 0; i < microbatches.size(); ++i) {
    const at::Tensor logprobs = logprobs_of(microbatches[i], static_cast<int64_t>(i), /*step=*/0);
    const at::Tensor place = microbatches[i].result_map.to(setup_.device);
    const at::Tensor real = place.ge(0);  // empty for a dummy
    all.view({-1}).index_copy_(0, place.masked_select(real), logprobs.masked_select(real));
  }
  return all;
}

LossCounts Trainer::count(const std::vector<Microbatch>& microbatches) {
  LossCounts counts;
  for (const Microbatch& micro : microbatches) {
    const LossCounts here = counts_of(micro.loss_mask);
    counts.tokens += here.tokens;
    counts.sequences += here.sequences;
    counts.pairs += here.pairs;
  }
  const at::Tensor local = at::tensor({counts.tokens, counts.sequences, counts.pairs},
                                      at::TensorOptions().dtype(at::kDouble))
                               .to(setup_.device);
  const at::Tensor global =
      setup_.comm.along(tokens_.sample_axes).all_reduce(local, ReduceOp::kSum, "loss counts").cpu();
  return {.tokens = global[0].item<double>(),
          .sequences = global[1].item<double>(),
          .pairs = global[2].item<double>()};
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
  const at::Tensor global = setup_.comm.along(tokens_.sample_axes)
                                .all_reduce(at::stack(addends), ReduceOp::kSum, "loss")
                                .cpu();
  StepMetrics metrics{
      .loss = global[0].item<double>(), .tokens = counts.tokens, .sequences = counts.sequences};
  for (size_t i = 1; i < sums.size(); ++i) {
    metrics.of_loss[sums[i].name] = global[static_cast<int64_t>(i)].item<double>();
  }
  return metrics;
}

StepMetrics Trainer::evaluate(const Batch& batch) {
  const at::NoGradGuard no_grad;
  held_.clear();
  const auto microbatches = this->microbatches(batch, Pass::kTraining);
  const LossCounts counts = count(microbatches);
  const std::shared_ptr<void> whole = store_->hold_whole();
  std::vector<LossMetric> sums;
  for (size_t i = 0; i < microbatches.size(); ++i) {
    const LossInputs inputs = loss_inputs(
        microbatches[i], logprobs_of(microbatches[i], static_cast<int64_t>(i), /*step=*/0));
    add_up(sums, loss_addend(inputs, counts, options_.loss),
           loss_metrics(inputs, counts, options_.loss));
  }
  const StepMetrics metrics = reduce_metrics(sums, counts);
  observe_scalar("loss", Phase::kForward, /*step=*/0, metrics.loss);
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
  held_.clear();
  const auto microbatches = this->microbatches(batch, Pass::kTraining);
  const LossCounts counts = count(microbatches);
  std::vector<LossMetric> sums;
  std::map<int64_t, Running> running;
  for (const auto& [kind, i, chunk] : styles_.actions(std::ssize(microbatches))) {
    if (kind == Action::Kind::kForward) {
      const Microbatch& micro = microbatches[i];
      store_->begin_microbatch(/*last=*/i + 1 == std::ssize(microbatches));
      const auto cut = std::make_shared<const ContextCut>(
          context_cut_of(micro, setup_.mesh, setup_.rank, tokens_));
      const LossInputs inputs = loss_inputs(micro, logprobs_of(micro, i, step_, *cut));
      const at::Tensor addend = loss_addend(inputs, counts, options_.loss);
      add_up(sums, addend.detach(), loss_metrics(inputs, counts, options_.loss));
      running[i] = {.loss = addend, .cut = cut};
    } else {
      // Gradients are later averaged over the axes of tokens; the factor cancels that mean.
      (running.at(i).loss * grad_factor()).backward();
      running.erase(i);
      store_->finish_backward();
    }
  }
  for (Slot* slot : model_.slots()) slot->layer->finish_backward();
  // Finishes before the ranks wait for each other elsewhere: all ranks hold at once what one holds
  // while it waits.
  const std::vector<at::Tensor> grads = finish_gradients();
  StepMetrics metrics = reduce_metrics(sums, counts);
  observe_scalar("loss", Phase::kForward, step_, metrics.loss);
  metrics.skipped = grads.empty();
  if (!metrics.skipped) {
    const at::Tensor norm = grad_norm(parameters_, grads, setup_.comm, options_.norm);
    metrics.grad_norm = norm.item<double>();
    observe_scalar("grad_norm", Phase::kStep, step_, metrics.grad_norm);
    clip_grads(grads, norm, options_.max_norm);
  }
  update(grads);
  unfinished.finish();  // an exception after this leaves the step done
  if (!metrics.skipped && !options_.schedule.stages.empty()) {
    observe_scalar("lr", Phase::kStep, step_, schedule_.after(schedule_steps_));
  }
  observe_state();
  observe_metrics(metrics, step_);
  return metrics;
}

void Trainer::observe_metrics(const StepMetrics& metrics, int64_t step) {
  observe_scalar("metric.tokens", Phase::kStep, step, metrics.tokens);
  observe_scalar("metric.sequences", Phase::kStep, step, metrics.sequences);
  // In lower precisions roundings change the decision whether a token is clipped.
  if (setup_.dtype != at::kDouble) return;
  for (const auto& [name, value] : metrics.of_loss) {
    observe_scalar("metric." + name, Phase::kStep, step, value);
  }
}

// Empty when a gradient overflowed on any rank.
std::vector<at::Tensor> Trainer::finish_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads = store_->take_gradients();
  apply_gradient_rules(parameters_, grads, setup_.comm, setup_.device);
  store_->average(grads);
  if (loss_scale_.enabled()) {
    observe_scalar("metric.loss_scale", Phase::kStep, step_, loss_scale_.scale());
    const bool overflow =
        loss_scale_.unscale(grads, setup_.comm.world(), setup_.device, mean_over());
    observe_scalar("metric.skipped", Phase::kStep, step_, overflow ? 1 : 0);
    if (overflow) return {};
  }
  for (size_t i = parameters_.size(); i-- > 0;) {
    if (parameters_[i]->trainable) observe_step("grad.", *parameters_[i], grads[i]);
  }
  return grads;
}

void Trainer::set_batching(const BatchingOptions& batching, int64_t micro_batch_size) {
  options_.batching = batching;
  options_.micro_batch_size = micro_batch_size;
}

void Trainer::observe_step(const std::string& prefix, const Parameter& parameter,
                           const at::Tensor& tensor) {
  if (!tensor.defined() || !setup_.probe.listens(Phase::kStep)) return;
  setup_.probe.observe({.name = prefix + parameter.name,
                        .phase = Phase::kStep,
                        .step = step_,
                        .tensor = tensor,
                        .layout = parameter.layout});
}

void Trainer::observe_scalar(const std::string& name, Phase phase, int64_t step, double value) {
  if (!setup_.probe.listens(phase)) return;
  setup_.probe.observe({.name = name,
                        .phase = phase,
                        .step = step,
                        .tensor = at::scalar_tensor(value, at::kDouble)});
}

}  // namespace shardproof
