#include "golden/policy_life.h"

#include <ATen/ATen.h>

#include <optional>

#include "base/error.h"
#include "golden/kept_streams.h"
#include "golden/learning_rate.h"
#include "golden/plain_model.h"
#include "sim/case/policy_stages.h"

namespace shardproof::golden {
namespace {

std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& tensor : tensors) out.push_back(tensor.detach().clone());
  return out;
}

// Runs the stages once, from the first weights.
class Life {
 public:
  Life(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options, Probe& probe,
       int64_t moment)
      : spec_(spec),
        batch_(data.batch),
        dtype_(options.dtype),
        model_(spec, data, options, probe),
        optimizer_(model_.optimizer()),
        reference_(copies(model_.masters())),
        streams_(spec.seed, spec.parallel.pp, spec.parallel.tp),
        moment_(moment) {}

  // Returns the moment after the last one.
  int64_t run() {
    for (const sim::StageSpec& stage : spec_.stages) run_stage(stage);
    return moment_;
  }

 private:
  // The state from which training continues.
  struct Saved {
    std::shared_ptr<const WitnessOptimizer::Saved> optimizer;  // null: nothing was saved yet
    int64_t calls = 0;
    OverflowSkips::State loss_scale = {};
    std::optional<KeptStreams> streams = {};
    int64_t steps = 0;
  };

  void run_stage(const sim::StageSpec& stage) {
    if (stage.fails) return;
    if (stage.kind == sim::StageKind::kTrain) return train(stage);
    if (stage.kind == sim::StageKind::kScore) return score();
    if (stage.kind == sim::StageKind::kReference) return refer();
    if (stage.kind == sim::StageKind::kRefit)
      return observe_weights(ObservationKind::kRefit, dtype_);
    if (stage.kind == sim::StageKind::kSave) return save();
    if (stage.kind == sim::StageKind::kLoad) return load(stage);
    if (stage.kind == sim::StageKind::kDraw) return draw();
    if (stage.kind == sim::StageKind::kExport) {
      return observe_weights(ObservationKind::kParameter, model_.masters().front().scalar_type());
    }
    SHARDPROOF_ASSERT(stage.kind == sim::StageKind::kOffload,
                      "no stage '" + name_of(stage.kind) + "'");
  }

  void train(const sim::StageSpec& stage) {
    double rate = learning_rate(spec_.optimizer, calls_);
    for (int64_t first = 0; first < batch_.size(); first += stage.global_batch_size) {
      const Batch batch = batch_.slice(first, stage.global_batch_size);
      if (stage.eval_mode) {
        model_.evaluate(batch, moment_++);
      } else {
        model_.routes().replay_next(first);
        model_.train(batch, moment_++, optimizer_, rate);
        model_.routes().stay_live();
        ++steps_;
      }
      // The call ends there, with a step of the scheduler.
      const int64_t made = first / stage.global_batch_size + 1;
      if (made == stage.interrupted_after) rate = learning_rate(spec_.optimizer, ++calls_);
    }
    if (!stage.eval_mode) ++calls_;
  }

  void score() {
    model_.routes().record_next();
    batch_.prev_logprobs = model_.score(batch_, moment_).to(at::kDouble);
    model_.observe(ObservationKind::kScores, "scores", Phase::kStep, moment_++,
                   batch_.prev_logprobs);
    model_.routes().stay_live();
  }

  void refer() {
    const std::vector<at::Tensor> policy = copies(model_.masters());
    model_.set_masters(reference_);
    batch_.reference_logprobs = model_.score(batch_, moment_).to(at::kDouble);
    model_.set_masters(policy);
    model_.observe(ObservationKind::kScores, "reference_scores", Phase::kStep, moment_++,
                   batch_.reference_logprobs);
  }

  void observe_weights(ObservationKind kind, at::ScalarType dtype) {
    for (size_t i = 0; i < model_.parameters().size(); ++i) {
      model_.observe(kind, observed_name(kind, model_.parameters()[i]->name), Phase::kStep, moment_,
                     model_.masters()[i].to(dtype));
    }
    ++moment_;
  }

  void save() {
    saved_ = {.optimizer = optimizer_.save(),
              .calls = calls_,
              .loss_scale = model_.loss_scale(),
              .streams = streams_,
              .steps = steps_};
  }

  void load(const sim::StageSpec& stage) {
    SHARDPROOF_ASSERT(saved_.optimizer != nullptr, "a load comes after a save");
    optimizer_.load(*saved_.optimizer);
    model_.set_masters(copies(model_.masters()));  // copies the masters to the leaves
    model_.set_loss_scale(saved_.loss_scale);
    calls_ = saved_.calls;
    steps_ = saved_.steps;
    streams_ = *saved_.streams;
    model_.routes().forget();
    streams_.load(stage.parallel.pp, stage.parallel.tp, steps_);
    model_.observe_state(moment_++, optimizer_);
  }

  void draw() {
    model_.observe(ObservationKind::kDraw, "draw.alike", Phase::kStep, moment_,
                   streams_.draw_alike(sim::kNumbersDrawn));
    model_.observe(ObservationKind::kDraw, "draw.parts", Phase::kStep, moment_,
                   streams_.draw_parts(sim::kNumbersDrawn));
    ++moment_;
  }

  const sim::CaseSpec& spec_;
  Batch batch_;
  at::ScalarType dtype_;
  PlainModel model_;
  WitnessOptimizer optimizer_;
  std::vector<at::Tensor> reference_;
  KeptStreams streams_;
  Saved saved_;
  int64_t moment_;
  int64_t calls_ = 0;  // of train; each is a step of the scheduler
  int64_t steps_ = 0;  // of the optimizer
};

}  // namespace

void run_policy_life(const sim::CaseSpec& spec, const CaseData& data, const RunOptions& options,
                     Probe& probe) {
  int64_t moment = 1;
  for (int64_t life = 0; life < spec.lives; ++life) {
    moment = Life(spec, data, options, probe, moment).run();
  }
}

}  // namespace shardproof::golden
