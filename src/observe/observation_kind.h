// What an observation shows: its producer says it, and no reader takes it from the name.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "observe/phase.h"

namespace shardproof {

enum class ObservationKind : uint8_t {
  kUnknown,         // the producer did not say it; no probe takes such an observation
  kOutput,          // "<slot>.output", or another tensor of a forward pass
  kInputGradient,   // "<slot>.grad_input", or the gradient at another activation
  kLogprobs,        // "logprobs", of a step or of scoring
  kLoss,            // "loss"
  kScores,          // "scores", "reference_scores": the logprobs that a policy's worker returns
  kGradient,        // "grad.<parameter>"
  kGradNorm,        // "grad_norm", "grad_norm.1"
  kClipFactor,      // "clip_coefficient"
  kRate,            // "lr"
  kParameter,       // "param.<parameter>"
  kExpAvg,          // "exp_avg.<parameter>"
  kExpAvgSq,        // "exp_avg_sq.<parameter>"
  kMomentumBuffer,  // "momentum_buffer.<parameter>"
  kWholeMatrix,     // "whole.<parameter>": the matrix that Muon makes orthogonal
  kOtherState,      // "<state>.<parameter>" of an optimizer
  kStepCount,       // "step.<parameter>": an optimizer's count of steps
  kBuffer,          // "buffer.<name>"
  kRandomState,     // "random.<generator>"
  kRefit,           // "refit.<weight>", as a receiver holds it
  kInitial,         // "initial.<parameter>", before the first step
  kFed,             // "fed.param.<parameter>", after a step that was fed with golden gradients
  kCount,           // "metric.tokens", "metric.sequences"
  kMetric,          // "metric.<name>", another metric of the loss
  kLossScale,       // "metric.loss_scale"
  kSkipped,         // "metric.skipped"
  kDraw,            // "draw.<place>" (observe/draw_log.h)
  kBoundary,        // "<part>.boundary": the stream that goes from a stage to the next, in front
                    // of this part of the model; "<part>.grad_boundary": its gradient, on its way
                    // back
};
inline constexpr ObservationKind kLastObservationKind = ObservationKind::kBoundary;

// The kinds of an optimizer's moments that our own optimizers have.
inline bool is_moment(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kExpAvg || kind == kExpAvgSq || kind == kMomentumBuffer;
}

// Whether a step of an optimizer writes it.
inline bool is_stepped(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kParameter || is_moment(kind) || kind == kOtherState;
}

inline bool is_metric(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kCount || kind == kMetric || kind == kLossScale || kind == kSkipped;
}

// Whether a metric is a share of decisions (is a token clipped, does a pair win), which roundings
// change: only float64 runs have it.
inline bool is_of_decisions(std::string_view metric) {
  return metric == "metric.clip_fraction" || metric == "metric.accuracy";
}

struct KindPrefix {
  ObservationKind kind;
  std::string_view prefix;
};

// The kinds whose names are a prefix and the name of a parameter or the like.
inline constexpr KindPrefix kKindPrefixes[] = {
    {ObservationKind::kGradient, "grad."},
    {ObservationKind::kParameter, "param."},
    {ObservationKind::kExpAvg, "exp_avg."},
    {ObservationKind::kExpAvgSq, "exp_avg_sq."},
    {ObservationKind::kMomentumBuffer, "momentum_buffer."},
    {ObservationKind::kWholeMatrix, "whole."},
    {ObservationKind::kStepCount, "step."},
    {ObservationKind::kBuffer, "buffer."},
    {ObservationKind::kRandomState, "random."},
    {ObservationKind::kRefit, "refit."},
    {ObservationKind::kInitial, "initial."},
    {ObservationKind::kFed, "fed.param."},
    {ObservationKind::kMetric, "metric."},
    {ObservationKind::kDraw, "draw."},
};

// "grad.w" for the gradient of "w".
inline std::string observed_name(ObservationKind kind, std::string_view of) {
  for (const KindPrefix& one : kKindPrefixes) {
    if (one.kind == kind) return std::string(one.prefix).append(of);
  }
  return std::string(of);
}

// "w" for the gradient "grad.w" and for another state "square_avg.w"; the whole name where the kind
// has no parameter.
inline std::string parameter_of(ObservationKind kind, const std::string& name) {
  for (const KindPrefix& one : kKindPrefixes) {
    if (one.kind == kind) return name.substr(one.prefix.size());
  }
  return kind == ObservationKind::kOtherState ? name.substr(name.find('.') + 1) : name;
}

// The kind of a name that was read from a file or made by a proof, which say no more. Only the code
// that reads them calls it. In the step's phase a name without a known prefix is another state.
inline ObservationKind kind_of_name(Phase phase, std::string_view name) {
  using enum ObservationKind;
  if (name == "logprobs") return kLogprobs;
  if (name == "loss") return kLoss;
  if (phase == Phase::kBackward) return kInputGradient;
  if (phase != Phase::kStep) return name.starts_with("draw.") ? kDraw : kOutput;
  const size_t digits = name.find_last_not_of("0123456789");
  const bool numbered = digits + 1 < name.size() && digits != name.npos && name[digits] == '.';
  const std::string_view plain = numbered ? name.substr(0, digits) : name;
  if (plain == "grad_norm") return kGradNorm;
  if (plain == "clip_coefficient") return kClipFactor;
  if (plain == "lr") return kRate;
  if (name == "scores" || name == "reference_scores") return kScores;
  if (name == "metric.tokens" || name == "metric.sequences") return kCount;
  if (name == "metric.loss_scale") return kLossScale;
  if (name == "metric.skipped") return kSkipped;
  for (const KindPrefix& one : kKindPrefixes) {
    if (name.starts_with(one.prefix)) return one.kind;
  }
  return kOtherState;
}

}  // namespace shardproof
