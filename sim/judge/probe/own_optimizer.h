// Judges the optimizer on one rank, at every step and in every precision: the parameter and state
// after the step must follow from the rank's own gradient, norm, parameter and state before it. The
// formulas are written here again, in float64, elementwise.
//
//   g' = g min(1, max_norm / (norm + 1e-6))
//   AdamW (Loshchilov and Hutter, arXiv:1711.05101)
//     m' = b1 m + (1 - b1) g'      v' = b2 v + (1 - b2) g'^2
//     w' = w (1 - lr decay) - lr (m' / (1 - b1^t)) / (sqrt(v' / (1 - b2^t)) + eps)
//   SGD (torch.optim.SGD)
//     d = g' + decay w             b' = momentum b + (1 - dampening) d; d in the first step
//     w' = w - lr (d + momentum b' with nesterov, b' with momentum, else d)
//   Muon (torch.optim.Muon), of the matrices of hidden layers
//     b' = momentum b + (1 - momentum) g'
//     the rank's own part of the whole matrix is (1 - momentum) g' + momentum b' with nesterov,
//     else b' w' = w (1 - lr decay) - lr, times its part of what the rank's own whole matrix gives
//
// A value is wrong when its error exceeds kOwnRoundings eps of its dtype times the sum of the
// magnitudes of its terms. NaN and infinity are right where they are due; what float32 cannot hold
// is infinite there.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/probe/optimizer_terms.h"

namespace shardproof::sim::judge {

inline constexpr double kOwnRoundings = 16;

class OwnOptimizer {
 public:
  // Both must outlive it. `mesh` is that of a case without stages.
  OwnOptimizer(const CaseSpec& spec, const GoldenRecord& golden, const Mesh& mesh, int64_t rank);

  // Starts a parameter at its value before the first step of a run or a policy; forgets its state.
  void begin(const std::string& parameter, const at::Tensor& value);
  // Takes every observation of the step phase, in the order made. `local` is its tensor, contiguous
  // on the CPU. Returns a sentence, or "" when it follows or the values before the step are
  // unknown.
  std::string see(const Observation& observation, const at::Tensor& local);
  // The number of values that were derived and compared so far.
  int64_t judged() const { return judged_; }

 private:
  // A copy of values in their own dtype; it does not count as one of the rank's tensors.
  struct Values {
    std::shared_ptr<const std::byte[]> bytes;
    size_t size = 0;  // in bytes
    at::ScalarType dtype = at::kDouble;
    bool empty() const { return size == 0; }
    // Writes elements [first, first + count) to `out`; zeros when there are none.
    void read(size_t first, size_t count, double* out) const;
  };
  static constexpr size_t kBlock = kOptimizerBlock;
  using Block = OptimizerBlock;
  // Computes elements [first, first + count) of what is due; count <= kBlock.
  using Expected = std::function<void(size_t first, size_t count, Block& due)>;
  using Gradient = std::function<void(size_t first, size_t count, double* out)>;  // clipped
  struct Tracked {
    Values value, gradient;
    std::map<ObservationKind, Values> state;
    int64_t gradient_step = -1;
    std::map<ObservationKind, Expected> expected;  // of the state, until it is observed
    Layout layout;                                 // of the parameter
    std::vector<double> update;                    // of Muon, without the learning rate
    Expected momentum;                             // of Muon
    double largest_update = 0;                     // of Muon, of any element
  };

  static Values copy_of(const at::Tensor& tensor);
  std::string see_parameter(const std::string& name, int64_t step, const at::Tensor& local);
  std::string see_state(ObservationKind kind, const std::string& name, const at::Tensor& local);
  std::string see_whole(const Observation& observation, const at::Tensor& whole);
  // The indices that the rank's shard has in the whole matrices that it has collected.
  std::vector<at::Tensor> own_places(const Tracked& tracked, const Observation& whole,
                                     const std::vector<int64_t>& shape) const;
  bool has_step(const Tracked& tracked, int64_t step, size_t bytes) const;
  Gradient clipped_gradient(const Tracked& tracked) const;
  double rate_of(int64_t step) const;
  Expected muon_step(Tracked& tracked, double rate) const;
  Expected take_step(Tracked& tracked, const std::string& name, int64_t step);
  Expected adamw_step(Tracked& tracked, double rate, double steps) const;
  Expected sgd_step(Tracked& tracked, double rate) const;
  std::string compare(const Expected& expected, const at::Tensor& local);
  std::string share_of_step(const Tracked& tracked, const Expected& expected,
                            const at::Tensor& local) const;

  const CaseSpec& spec_;
  const GoldenRecord& golden_;
  Mesh mesh_;
  int64_t rank_;
  std::map<std::string, Tracked> parameters_;
  double norm_ = 0;
  int64_t norm_step_ = -1;
  std::map<int64_t, bool> skipped_ = {};  // by step, as the rank says
  std::map<int64_t, double> rates_ = {};  // by step, as the rank says
  int64_t judged_ = 0;
};

}  // namespace shardproof::sim::judge
