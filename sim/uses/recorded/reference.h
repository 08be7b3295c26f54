// The tensors of a recorded run, put together from its ranks' pieces: what another run is compared
// with.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/case/record/golden_record.h"
#include "sim/case/record/magnitude.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

struct Reference {
  GoldenRecord record;                   // ordered as the run computed them
  std::set<std::string> narrow;          // record keys of tensors that were recorded below float64
  std::set<std::string> concluded = {};  // of those with RecordedPiece::is_concluded
  std::vector<double> phase_scales;      // phase_scale_of() each tensor of the record, in its order
  bool knows_optimizer = false;          // RecordedRun::knows_optimizer
  std::vector<ParameterGroup> groups = {};           // RecordedRun::groups
  std::map<std::string, std::string> settings = {};  // RecordedRun::settings
  double max_norm = 0;                               // of RecordedRun::optimizer
  std::map<std::string, MatrixRule> matrices = {};   // RecordedRun::matrices
  // Forward tensors that its pieces do not make whole, or are of single microbatches.
  struct LeftOut {
    ObservationKind kind = {};
    std::set<int64_t> steps = {};
  };
  std::map<std::string, LeftOut> left_out = {};
  // The run's repeats in the precision of the judged run. From them the record has its scatters.
  int64_t repeats = 0;

  // Whether there are enough repeats to tell how much correct runs scatter.
  bool is_scattered() const { return repeats >= kPerturbed; }
};

// Tensors are ordered by step and phase, then by RecordedPiece::order of the lowest rank. Throws
// Error(kBadInput) when ranks hold unequal copies of an element, and when no rank holds an element
// of a gradient, parameter or optimizer state. The learning rates of run.json are tensors too.
// `judged` is the precision of the run that is judged. Throws Error(kBadInput) for a repeat that
// starts from other parameters or recorded other tensors, and for repeats that have other inputs:
// they agree with each other, and are far from the run.
Reference make_reference(const RecordedRun& run, Precision judged);

// Fills the phase scales of the reference from its record.
void add_phase_scales(Reference& reference);
// The largest magnitude of the tensors beside it: of a moment, those of its kind and the gradients,
// or their squares, of its step; of others, those of their phase and step. User scalars, as a count
// of tokens, are not among them.
double phase_scale_of(const Reference& reference, const GoldenTensor& golden);
// The allowance of float64.
double exact_allowance(const Reference& reference, const GoldenTensor& golden);

// The group that a parameter is in, by its name there or with the number of its layer; null: none.
const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups,
                               const std::string& parameter);

}  // namespace shardproof::sim::recorded
