#include "train/step_runner.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "logprob/vocab_parallel_logprob.h"
#include "train/held_tokens.h"
#include "train/ids_ahead.h"
#include "train/loss.h"

namespace shardproof {
namespace {

// Observes what a stage has "sent" or "received".
void observe_end(const Boundary& boundary, Phase phase, const at::Tensor& tensor,
                 const StepContext& context, const char* what, int64_t stage,
                 const Action& action) {
  if (!context.probe.listens(phase)) return;
  observe_boundary(boundary, phase, tensor, context,
                   fmt::format("{} by stage {} (chunk {})", what, stage, action.chunk));
}

}  // namespace

StepRunner::StepRunner(const RankSetup& setup, Decoder& model, const ParallelStyles& styles,
                       ParameterStore& store)
    : setup_(setup),
      model_(model),
      styles_(styles),
      store_(store),
      tokens_(styles.token_cuts(setup.mesh)),
      link_(styles.link({.model = model,
                         .comm = setup.comm,
                         .dtype = setup.dtype,
                         .device = setup.device,
                         .token_axes = tokens_.token_axes(setup.mesh)})) {}

bool StepRunner::is_first(int64_t chunk) const { return !link_ || link_->is_first(chunk); }
bool StepRunner::is_last(int64_t chunk) const { return !link_ || link_->is_last(chunk); }

bool StepRunner::has_backward(int64_t chunk) const { return !link_ || link_->has_backward(chunk); }

bool StepRunner::holds_last() const {
  for (int64_t chunk = 0; chunk < model_.chunk_count(); ++chunk) {
    if (is_last(chunk)) return true;
  }
  return false;
}

std::vector<std::string> StepRunner::boundaries_elsewhere() const {
  std::set<std::string> own;
  for (int64_t chunk = 0; chunk < model_.chunk_count(); ++chunk) {
    if (!is_first(chunk)) own.insert(link_->entry(chunk).part);
    if (!is_last(chunk)) own.insert(link_->exit(chunk).part);
  }
  std::vector<std::string> names;
  for (const Segment& segment : model_.segments()) {
    const std::string part = part_name(segment);
    if (own.contains(part)) continue;
    for (const Phase phase : {Phase::kForward, Phase::kBackward}) {
      names.push_back(boundary_name(part, phase));
    }
  }
  return names;
}

at::Tensor StepRunner::from_last(const at::Tensor& value, std::string_view label) {
  return link_ ? link_->from_last(value, label) : value;
}

void StepRunner::run(const std::vector<Microbatch>& microbatches, const Options& options,
                     const AtLogprobs& at_logprobs) {
  try {
    run_actions(microbatches, options, at_logprobs);
  } catch (...) {
    abandon();
    throw;
  }
}

void StepRunner::run_actions(const std::vector<Microbatch>& microbatches, const Options& options,
                             const AtLogprobs& at_logprobs) {
  held_.clear();
  cuts_.clear();
  std::vector<Action> actions = styles_.actions(setup_.mesh, setup_.rank, std::ssize(microbatches),
                                                model_.chunk_count(), options.backward);
  std::erase_if(actions, [this](const Action& action) {
    return action.kind != Action::Kind::kForward && !has_backward(action.chunk);
  });
  splits_ = std::any_of(actions.begin(), actions.end(),
                        [](const Action& action) { return action.kind == Action::Kind::kWeights; });
  std::vector<std::vector<int64_t>> shapes;
  for (const Microbatch& micro : microbatches) {
    cuts_.push_back(context_cut_of(micro, setup_.mesh, setup_.rank, tokens_));
    held_.push_back({.rows = micro.token_map, .held = cuts_.back().local(micro.token_map)});
    const at::Tensor& held = held_.back().held;
    shapes.push_back(
        {held.size(0), held.size(1) / tokens_.row_multiple, model_.config().hidden_size});
  }
  if (link_) link_->begin(actions, options.backward, std::move(shapes));
  const std::shared_ptr<void> whole = options.backward ? nullptr : store_.hold_whole();
  const std::vector<Complete> complete = completed_by(actions);
  for (size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    if (token_watch_) token_watch_(held_[static_cast<size_t>(action.microbatch)].held);
    if (link_ && watch_) watch_(action, options.step, /*begins=*/true);
    if (link_) link_->before(action);
    if (options.backward) store_.before(action, complete[i]);
    switch (action.kind) {
      case Action::Kind::kForward:
        forward(action, microbatches[static_cast<size_t>(action.microbatch)], options, at_logprobs);
        break;
      case Action::Kind::kBackward:
        backward(action, options);
        break;
      case Action::Kind::kWeights:
        open_weights_.finish(action.chunk, action.microbatch);
        break;
    }
    if (options.backward) store_.after(action, complete[i]);
    if (link_ && watch_) watch_(action, options.step, /*begins=*/false);
  }
  SHARDPROOF_ASSERT(open_weights_.empty(), "a microbatch has no action for its weight gradients");
  if (link_) link_->finish();
}

void StepRunner::forward(const Action& action, const Microbatch& micro, const Options& options,
                         const AtLogprobs& at_logprobs) {
  Running here;
  const ContextCut& cut = cuts_[static_cast<size_t>(action.microbatch)];
  const StepContext context{
      .probe = setup_.probe,
      .step = options.step,
      .microbatch = action.microbatch,
      .token_map = held_[static_cast<size_t>(action.microbatch)].held,
      .positions = cut.local(micro.positions).to(setup_.device),
      .further_ids = options.backward ? further_ids(micro, cut) : at::Tensor(),
      .grad_scale = options.grad_scale,
      .sequence_ids = micro.plan ? packed_sequence_ids(*micro.plan).squeeze(0) : at::Tensor(),
      .sequence_layout = &cut.ring(),
      .open_weights = splits_ ? &open_weights_ : nullptr};
  if (!is_first(action.chunk)) {
    here.input = link_->input(action);
    const Boundary& entry = link_->entry(action.chunk);
    observe_end(entry, Phase::kForward, here.input, context, "received", entry.stage + 1, action);
  }
  const at::Tensor x =
      here.input.defined() ? here.input : cut.local(micro.input_ids.to(setup_.device));
  here.output = model_.forward(action.chunk, x, context);
  if (is_last(action.chunk)) {
    here.output = at_logprobs(static_cast<size_t>(action.microbatch),
                              all_logprobs(here.output, micro, cut, context, options.temperature));
  } else {
    const Boundary& exit = link_->exit(action.chunk);
    observe_end(exit, Phase::kForward, here.output, context, "sent", exit.stage, action);
    link_->output(action, here.output);
  }
  if (!options.backward || !has_backward(action.chunk)) return;
  running_[{action.chunk, action.microbatch}] = std::move(here);
}

void StepRunner::backward(const Action& action, const Options& options) {
  const auto found = running_.find({action.chunk, action.microbatch});
  SHARDPROOF_ASSERT(found != running_.end(), "a backward comes after its forward");
  const Running& running = found->second;
  const StepContext context{.probe = setup_.probe,
                            .step = options.step,
                            .microbatch = action.microbatch,
                            .token_map = held_[static_cast<size_t>(action.microbatch)].held,
                            .grad_scale = options.grad_scale};
  if (is_last(action.chunk)) {
    running.output.backward();
  } else {
    const at::Tensor grad = link_->output_grad(action);
    const Boundary& exit = link_->exit(action.chunk);
    observe_end(exit, Phase::kBackward, grad, context, "received", exit.stage, action);
    running.output.backward(grad);
  }
  const bool flows = running.input.defined() && running.input.requires_grad();
  if (flows) {
    const at::Tensor grad = running.input.grad();
    const Boundary& entry = link_->entry(action.chunk);
    observe_end(entry, Phase::kBackward, grad, context, "sent", entry.stage + 1, action);
    link_->input_grad(action, grad);
  }
  running_.erase(found);
}

void StepRunner::settle() {
  if (link_) link_->settle();
}

void StepRunner::abandon() {
  running_.clear();
  open_weights_.drop();
  if (link_) link_->drop();
}

// [D, b, n] of this rank's tokens; undefined without extra heads.
at::Tensor StepRunner::further_ids(const Microbatch& micro, const ContextCut& cut) const {
  std::vector<at::Tensor> all;
  for (const at::Tensor& ids : ids_ahead(micro, model_.config().extra_heads)) {
    all.push_back(cut.local(ids));
  }
  return all.empty() ? at::Tensor() : at::stack(all).to(setup_.device);
}

// The model's, and in a pass in which they run those of each extra head.
std::vector<at::Tensor> StepRunner::all_logprobs(const at::Tensor& logits, const Microbatch& micro,
                                                 const ContextCut& cut, const StepContext& context,
                                                 double temperature) {
  const int64_t heads = context.further_ids.defined() ? model_.config().extra_heads : 0;
  const int64_t rows = logits.size(1) / (1 + heads);
  const at::Tensor scored = micro.scored.to(setup_.device);
  const std::vector<at::Tensor> ahead = ids_ahead(micro, heads == 0 ? 0 : 1 + heads);
  std::vector<at::Tensor> all;
  for (int64_t depth = 0; depth <= heads; ++depth) {
    const at::Tensor own = heads == 0 ? logits : logits.narrow(1, depth * rows, rows);
    at::Tensor logprobs = depth == 0 ? logprobs_of(own, micro, cut, temperature)
                                     : logprobs_ahead(own, depth, ahead[static_cast<size_t>(depth)],
                                                      micro, cut, temperature);
    logprobs = at::where(scored, logprobs, at::zeros_like(logprobs));
    if (setup_.probe.listens(Phase::kForward)) {
      setup_.probe.observe({.kind = ObservationKind::kLogprobs,
                            .name = logprobs_name(depth),
                            .phase = Phase::kForward,
                            .step = context.step,
                            .microbatch = context.microbatch,
                            .tensor = logprobs,
                            .token_map = micro.result_map});
    }
    all.push_back(std::move(logprobs));
  }
  return all;
}

// [b, S]: the logprob of each token by the extra head that predicts `depth` tokens further than the
// model, and so not of the first 1 + depth tokens of a sequence. `ids` are those ahead.
at::Tensor StepRunner::logprobs_ahead(const at::Tensor& logits, int64_t depth,
                                      const at::Tensor& ids, const Microbatch& micro,
                                      const ContextCut& cut, double temperature) {
  const LogprobOptions scoring{.label = logprobs_name(depth), .temperature = temperature};
  const at::Tensor targets = cut.local(ids).to(setup_.device);
  const at::Tensor local = vocab_parallel_logprob(logits, targets, setup_.comm.along("tp"),
                                                  model_.config().vocab_size, scoring);
  const at::Tensor gathered = cut.gather(local, setup_.comm, scoring.label);
  const int64_t seq_len = micro.batch.seq_len(), before = std::min(1 + depth, seq_len);
  const int64_t kept = seq_len - before;
  if (kept == 0) return at::zeros({micro.batch.size(), seq_len}, gathered.options());
  const at::Tensor rows = micro.plan ? unpack(gathered, *micro.plan, kept)
                                     : at::constant_pad_nd(gathered, {0, kept - gathered.size(1)});
  return at::constant_pad_nd(rows, {before, 0}, 0);
}

// [b, S]: the logprob of each token given those before it. The shift comes before the cut because
// the successor of a rank's last token is on another rank. Each sequence of a packed row is shifted
// separately.
at::Tensor StepRunner::logprobs_of(const at::Tensor& logits, const Microbatch& micro,
                                   const ContextCut& cut, double temperature) {
  const at::Tensor ids = micro.input_ids.to(setup_.device);
  const LogprobOptions scoring{.temperature = temperature};
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

}  // namespace shardproof
