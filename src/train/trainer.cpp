#include "train/trainer.h"

#include <ATen/ATen.h>

#include "logprob/vocab_parallel_logprob.h"
#include "model/precision.h"
#include "parallel/dp/replicate.h"
#include "parallel/tp/partial_gradients.h"
#include "train/grad_norm.h"

namespace shardproof {
namespace {

// ids[next], 0 where `next` is -1: nothing follows in that sequence.
at::Tensor next_tokens(const at::Tensor& ids, const at::Tensor& next) {
  return ids.gather(1, next.clamp_min(0)).masked_fill_(next.lt(0), 0);
}

}  // namespace

Trainer::Trainer(const RankSetup& setup, Decoder& model, const TrainOptions& options)
    : setup_(setup), model_(model), options_(options), parameters_(model.parameters()) {
  model.materialise(setup.mesh, setup.rank, setup.dtype, setup.device);
  for (const ParameterPtr& parameter : parameters_) masters_.push_back(master_of(*parameter));
  states_.resize(parameters_.size());
}

int64_t Trainer::seq_multiple() const {
  return context_multiple(setup_.mesh, options_.context_layout) *
         (options_.sequence_parallel ? setup_.mesh.size("tp") : 1);
}

std::vector<Microbatch> Trainer::microbatches_of(const Batch& batch) const {
  BatchingOptions options = options_.batching;
  options.micro_batch_size = options_.micro_batch_size;
  return deal_batches(
      batch, setup_.mesh.size("dp"), setup_.mesh.coordinate("dp", setup_.rank), options,
      {.sequence_multiple = sequence_multiple(options_.context_layout, setup_.mesh.size("cp")),
       .row_multiple = seq_multiple()});
}

double Trainer::grad_factor() const { return static_cast<double>(token_rank_count(setup_.mesh)); }

// [b, S]: of each token given those before it. The shift comes before the cut: what follows a
// rank's last token is on another rank. Within a packed row each sequence is shifted by itself.
at::Tensor Trainer::sequence_logprobs(const Microbatch& micro, const ContextCut& cut,
                                      const StepContext& context) {
  const at::Tensor ids = micro.input_ids.to(setup_.device);
  const at::Tensor logits = model_.forward(cut.local(ids), context);
  const int64_t vocab_size = model_.config().vocab_size, seq_len = micro.batch.seq_len();
  Communicator& tp = setup_.comm.along("tp");
  // [b, n] to [b, S]: rows shorter than the batch's have no scored token beyond.
  const auto to_batch = [seq_len](const at::Tensor& rows) {
    return at::constant_pad_nd(rows, {0, seq_len - rows.size(1)}, 0);
  };
  if (cut.whole() && !micro.plan) {
    return to_batch(next_token_logprobs(logits, ids, tp, vocab_size));
  }
  const at::Tensor targets =
      micro.plan ? next_tokens(ids, packed_next(*micro.plan).to(setup_.device))
                 : at::constant_pad_nd(ids.narrow(1, 1, ids.size(1) - 1), {0, 1}, 0);
  const at::Tensor local = vocab_parallel_logprob(logits, cut.local(targets), tp, vocab_size);
  const at::Tensor gathered = cut.gather(local, setup_.comm, "logprobs");
  if (micro.plan) return at::constant_pad_nd(unpack(gathered, *micro.plan, seq_len - 1), {1, 0}, 0);
  return to_batch(at::constant_pad_nd(gathered.narrow(1, 0, gathered.size(1) - 1), {1, 0}, 0));
}

at::Tensor Trainer::logprobs_of(const Microbatch& micro, int64_t index, int64_t step) {
  const ContextCut cut =
      micro.plan
          ? ContextCut(setup_.mesh, setup_.rank,
                       micro.plan->layout(setup_.mesh.size("cp"), options_.context_layout))
          : ContextCut(setup_.mesh, setup_.rank, micro.input_ids.size(1), options_.context_layout);
  const StepContext context{
      .probe = setup_.probe,
      .step = step,
      .microbatch = index,
      .token_map = cut.local(micro.token_map),
      .positions = cut.local(micro.positions).to(setup_.device),
      .grad_scale = grad_factor(),
      .sequence_ids = micro.plan ? packed_sequence_ids(*micro.plan).squeeze(0) : at::Tensor(),
      .sequence_layout = &cut.ring()};
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

void Trainer::score(const Batch& batch) {
  const at::NoGradGuard no_grad;
  const auto microbatches = microbatches_of(batch);
  for (size_t i = 0; i < microbatches.size(); ++i) {
    logprobs_of(microbatches[i], static_cast<int64_t>(i), /*step=*/0);
  }
}

LossCounts Trainer::count(const std::vector<Microbatch>& microbatches) {
  double tokens = 0;
  double sequences = 0;
  for (const Microbatch& micro : microbatches) {
    tokens += micro.loss_mask.sum().item<double>();
    sequences += micro.loss_mask.ne(0).any(1).sum().item<double>();
  }
  const at::Tensor local =
      at::tensor({tokens, sequences}, at::TensorOptions().dtype(at::kDouble)).to(setup_.device);
  const at::Tensor global =
      setup_.comm.along("dp").all_reduce(local, ReduceOp::kSum, "loss counts").cpu();
  return {.tokens = global[0].item<double>(), .sequences = global[1].item<double>()};
}

StepMetrics Trainer::step(const Batch& batch) {
  ++step_;
  const auto microbatches = microbatches_of(batch);
  const LossCounts counts = count(microbatches);
  double loss_sum = 0;
  for (size_t i = 0; i < microbatches.size(); ++i) {
    const Microbatch& micro = microbatches[i];
    const auto here = [this](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(setup_.device) : tensor;
    };
    const at::Tensor addend =
        loss_addend({.logprobs = logprobs_of(micro, static_cast<int64_t>(i), step_),
                     .mask = here(micro.loss_mask),
                     .prev_logprobs = here(micro.batch.prev_logprobs),
                     .reference_logprobs = here(micro.batch.reference_logprobs),
                     .advantages = here(micro.batch.advantages)},
                    counts, options_.loss);
    loss_sum += addend.item<double>();
    // Gradients are averaged over dp, cp and ulysses later: the factor undoes that mean.
    (addend * grad_factor()).backward();
  }
  // Before the ranks wait for each other in anything else: what a rank holds while it waits, all
  // ranks hold at once.
  const std::vector<at::Tensor> grads = finish_gradients();
  const at::Tensor loss = setup_.comm.along("dp").all_reduce(
      at::scalar_tensor(loss_sum, at::TensorOptions().dtype(at::kDouble)).to(setup_.device),
      ReduceOp::kSum, "loss");
  StepMetrics metrics{
      .loss = loss.item<double>(), .tokens = counts.tokens, .sequences = counts.sequences};
  observe_scalar("loss", Phase::kForward, metrics.loss);
  const at::Tensor norm = grad_norm(parameters_, grads, setup_.comm);
  metrics.grad_norm = norm.item<double>();
  observe_scalar("grad_norm", Phase::kStep, metrics.grad_norm);
  clip_grads(grads, norm, options_.max_norm);
  update(grads);
  return metrics;
}

std::vector<at::Tensor> Trainer::finish_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> grads;
  std::vector<std::string> names;
  for (const ParameterPtr& parameter : parameters_) {
    grads.push_back(gradient_of(*parameter));
    parameter->tensor.mutable_grad() = at::Tensor();
    names.push_back(parameter->name);
  }
  reduce_partial_gradients(parameters_, grads, setup_.comm);
  average_gradients(grads, names, setup_.comm.along(token_axes(setup_.mesh)));
  for (size_t i = parameters_.size(); i-- > 0;) {
    observe_step("grad.", *parameters_[i], grads[i]);
  }
  return grads;
}

void Trainer::update(const std::vector<at::Tensor>& grads) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    optimizer_step(masters_[i], grads[i], states_[i], options_.optimizer);
    refresh_leaf(*parameters_[i]);
    observe_step("param.", *parameters_[i], masters_[i]);
    observe_step("exp_avg.", *parameters_[i], states_[i].exp_avg);
    observe_step("exp_avg_sq.", *parameters_[i], states_[i].exp_avg_sq);
    observe_step("momentum_buffer.", *parameters_[i], states_[i].momentum_buffer);
  }
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

void Trainer::observe_scalar(const std::string& name, Phase phase, double value) {
  if (!setup_.probe.listens(phase)) return;
  setup_.probe.observe({.name = name,
                        .phase = phase,
                        .step = step_,
                        .tensor = at::scalar_tensor(value, at::kDouble)});
}

}  // namespace shardproof
