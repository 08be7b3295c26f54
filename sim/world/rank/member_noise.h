// What a run of a reference in the case's precision does otherwise than the run that nothing moves:
// the same perturbations as those of a golden's members (golden/perturbation.h), on ranks.
//
//   slot output           moved by a rounding, and in the backward its gradient too
//   scores of attention   a row's weights, and the two products whose difference a score's gradient
//                         is: moved by their roundings (sim/case/recorder/score_noise.h)
//   parameter's gradient  moved by a rounding of the run's precision; after its observation each
//                         element smaller than the error of the run that nothing moves is also
//                         moved by up to that error
//
// Ranks that hold copies move them by the same factors: a draw follows from run, name, step and
// shape. So do ranks whose parts of other elements have the same shape.
#pragma once

#include <memory>
#include <string>

#include "model/decoder.h"
#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/reference_pieces.h"
#include "sim/judge/probe/reference_probe.h"
#include "train/trainer.h"

namespace shardproof::sim::world {

class MemberNoise {
 public:
  // Null where nothing is moved. Throws Error(kBadInput) as read_errors() does.
  static std::shared_ptr<const MemberNoise> of(const CaseSpec& spec);

  void wrap(Decoder& model) const;  // which this outlives
  at::Tensor moved(const at::Tensor& value, const std::string& stream) const;
  // In place, before and after the gradient is observed.
  void move_gradient(const Observation& gradient) const;
  void doubt_gradient(const Observation& gradient) const;

 private:
  int64_t seed_ = 0;
  std::string prefix_;
  double roundings_ = 1, roundings_of_gradient_ = 1;  // of their own dtypes
  RunErrors errors_;
};

// Moves the gradients that it passes on; the trainer updates with what it leaves in them.
class GradientNoiseProbe final : public Probe {
 public:
  GradientNoiseProbe(Probe& inner, std::shared_ptr<const MemberNoise> noise)
      : inner_(inner), noise_(std::move(noise)) {}

  bool listens(Phase phase) const override { return inner_.listens(phase); }
  void observe(const Observation& observation) override;

 private:
  Probe& inner_;
  std::shared_ptr<const MemberNoise> noise_;
};

// What the ranks of a case do otherwise when it is compared with another layout, and no process may
// hold the whole model.

// Whether each rank draws its own shards of seeded weights: in the case, and in the run that makes
// the reference.
bool draws_own_shards(const CaseSpec& spec);

// Gives the trainer the shards of seeded_weights(). Holds one full parameter at a time, and
// otherwise the rank's share.
void draw_own_shards(const CaseSpec& spec, const ModelConfig& config, Trainer& trainer,
                     const Mesh& mesh, int64_t rank);

judge::FullSizes full_sizes(const ModelConfig& config, const Batch& batch);

}  // namespace shardproof::sim::world
