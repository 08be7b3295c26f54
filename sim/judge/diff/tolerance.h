// How far an actual value may lie from the golden one. This file holds all constants of the rule.
//
//   float64   |actual - golden| <= 1e-10 * scale + 64 * eps * phase_scale
//             + max(scatters, 4 * eps of float64 * scale), for a golden whose scatter was measured
//   lower     + max(scatters, 4 * eps of the dtype that holds it * scale)
//             scatters = 0.4 * scale, but at least 2 * scatter and at most 6 * scatter;
//             6 * scatter where 2 * scatter is half of the scale or more
//
// `scale` is the largest magnitude of the golden tensor and `phase_scale` that of the golden
// tensors that it stands beside (GoldenScales). `scatter` is the largest distance between the
// float64 run and a member of the golden's ensemble in that precision (golden/perturbation.h).
// Correct runs use up to 1.3 scatters of a tensor and 1.8 of a scalar
// (tests/precision/calibrate.py). Where 6 scatters come near half of the tensor, fewer are allowed;
// where 2 reach it, the tensor is not resolved.
// In float64 the scatter is measured where a case fails by little (sim/run/case_runner.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::judge {

inline constexpr double kRelativeToScale = 1e-10;
inline constexpr double kFloat64Eps = 2.220446049250313e-16;
inline constexpr double kPhaseRoundings = 64;  // that a neighbor may show, of its size
inline constexpr double kFedRelativeToScale =
    1e-12;                                   // the optimizer that is fed with the golden gradients
inline constexpr double kScatters = 6;       // times the largest distance of a member
inline constexpr double kLeastScatters = 2;  // the fewest, where more would hide half of the tensor
inline constexpr double kMostOfScale = 0.4;  // for more than the fewest; a lost half exceeds it
// In eps of the tensor's dtype, for a tensor whose members do not scatter.
inline constexpr double kFloorRoundings = 4;
inline constexpr double kClipEps = 1e-6;  // torch.nn.utils.clip_grad_norm_

// The gap above 1 of "float64", "float32", "bfloat16" or "float16".
double eps_of_precision(Precision precision);

// What a precision below float64 adds to the allowance of a tensor whose values are held in a dtype
// with this eps.
double scatter_allowance(const GoldenTensor& golden, double eps);
double scatter_allowance(double scatter, double scale, double eps);

// Of a golden's ensemble (sim/case/record/magnitude.h).
enum class Members { kAll, kFew };

class Tolerance {
 public:
  explicit Tolerance(const CaseSpec& spec, Members members = Members::kAll);

  // The allowance of every element of the tensor; 0 for integers.
  double allowance(const GoldenTensor& golden) const;
  // Whether the allowance is below half of the tensor's scale. A factor of 2 or the loss of half
  // of a sum could pass otherwise. True for all parameters and optimizer state, which
  // own_optimizer.h judges, or in files result_file.cpp.
  bool resolves(const GoldenTensor& golden) const;
  // The allowance for an optimizer step that was fed with the golden's gradients and state.
  double fed_allowance(const GoldenTensor& golden) const;

 private:
  double lower_precision(const GoldenTensor& golden) const;

  double precision_eps_ = 0;  // 0: float64
  Members members_;
};

// The error that a free-running optimizer may add to each element because its gradients were only
// right within their own allowance d. It is summed over the steps that lead to the tensor
// (sim/case/policy_stages.h, steps_behind).
//
//   param, AdamW      lr * min(2, d / (|g| + adam_eps)), |g| the root of the corrected exp_avg_sq
//   param, SGD        lr * d / (1 - momentum)
//   exp_avg           the largest d so far: exp_avg is a mean of gradients
//   exp_avg_sq        the largest (2 |g| + d) * d so far: exp_avg_sq is a mean of squares
//   momentum_buffer   d / (1 - momentum), the largest so far
//
//   of Muon           e: the same mean of d as the tensor is of gradients (muon.h)
//     momentum_buffer, whole   e
//     param           lr * min(2.6, 2 * 485 * e * sqrt(elements) / |whole|), for each matrix alone
//
// Gradients are the golden's after clipping; d is clipped with them.
enum class KnownGradients {
  kEveryStep,
  // Files of answers have no others. A later step's gradient has the first one's d, and may be 0 in
  // every element.
  kFirstStep,
};
class FreeRunningAllowance {
 public:
  using Beside = std::function<double(const GoldenTensor&)>;
  // `rates` are those of its group of parameters, by step; without them the golden's "lr" counts.
  // `beside`: by how much more each gradient may differ; empty: by nothing.
  // Nothing when `tensor` is not a parameter or optimizer state, or the golden has no gradients.
  static std::optional<FreeRunningAllowance> of(const CaseSpec& spec, const GoldenRecord& golden,
                                                const GoldenTensor& tensor,
                                                KnownGradients known = KnownGradients::kEveryStep,
                                                const std::vector<double>& rates = {},
                                                Members members = Members::kAll,
                                                const Beside& beside = {});
  // The allowance of the element at `offset` of the full tensor.
  double at(int64_t offset) const;

 private:
  struct Step {
    const double* grad;     // golden, before clipping; null: not known
    double lr;              // the optimizer's, after its schedulers
    double clip;            // min(1, max_norm / (norm + 1e-6))
    double grad_allowance;  // before clipping
  };
  // The error of Muon's momentum and of what it makes orthogonal, after each step.
  struct MuonError {
    double momentum = 0, whole = 0;
  };
  void follow_muon(const GoldenRecord& golden, const GoldenTensor& tensor,
                   const std::vector<int64_t>& steps);
  double adam_param(int64_t offset) const;
  static double clipped(const Step& step, int64_t offset);

  ObservationKind kind_ = ObservationKind::kParameter;  // or a moment
  OptimizerSpec optimizer_;
  std::vector<Step> steps_;
  MuonError muon_;                  // after the last step
  std::vector<double> muon_param_;  // by matrix; empty: Muon does not update the parameter
  int64_t matrix_size_ = 0;
};

}  // namespace shardproof::sim::judge
