// What to record for a finding that says too little.
#include <fmt/format.h>

#include <algorithm>

#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/clue.h"

namespace shardproof::sim::recorded {
namespace {

// Of a tensor's scale: roundings of the run's precision may have grown so far, a bug seldom is so
// small.
constexpr double kGrownRoundings = 1e7;

bool has_outputs(const RecordedRun& run) {
  return std::any_of(run.pieces.begin(), run.pieces.end(), [](const RecordedPiece& piece) {
    return piece.kind == ObservationKind::kOutput;
  });
}

}  // namespace

std::string advice_on(const RecordedRun& run, const Reference& reference,
                      const judge::Divergence& found) {
  if (run.is_file || found.kind != ResultKind::kValues || found.step == 0) return "";
  const GoldenTensor* golden = reference.record.find(found.phase, found.step, found.tensor);
  const double scale = golden != nullptr ? golden->scale : 0;
  const double roundings = kGrownRoundings * judge::eps_of_precision(Precision::kFloat64) * scale;
  if (reference.repeats == 0 && found.worst.worst_error < roundings) {
    return fmt::format(
        "the error is {:.2g} of the tensor's scale; roundings may have grown so far, and repeats "
        "of the one-rank run (noise=16) measure how far they grow",
        found.worst.worst_error / scale);
  }
  const bool is_computed =
      found.phase == Phase::kForward || found.worst.kind == ObservationKind::kGradient;
  if (!is_computed || !found.likely.empty() || has_outputs(run)) return "";
  return "record the outputs of modules in both runs (activations=\"*\"), and the first that is "
         "wrong is named";
}

}  // namespace shardproof::sim::recorded
