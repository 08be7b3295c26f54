// What to record for a finding that says too little.
#include <fmt/format.h>
#include <fmt/ranges.h>

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

// Of a tensor whose parts do not make the reference's shape: what the run says of their layout. ""
// where the shapes are equal.
std::string other_layout(const judge::ResultRow& row, const GoldenTensor& golden) {
  const std::vector<int64_t> shape(golden.value.sizes().begin(), golden.value.sizes().end());
  if (row.global_shape == shape || row.local_shape.size() != shape.size()) return "";
  std::vector<size_t> cut;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] % std::max<int64_t>(row.local_shape[dim], 1) != 0) return "";
    if (row.local_shape[dim] != shape[dim]) cut.push_back(dim);
  }
  return fmt::format(
      "the rank has [{}] of it, which its layout in this run makes [{}]; of the reference's [{}] "
      "that is {}: see its layout (layouts= and offset= of record; of several patterns that fit "
      "the first counts)",
      fmt::join(row.local_shape, ", "), fmt::join(row.global_shape, ", "), fmt::join(shape, ", "),
      cut.empty() ? std::string("the whole")
                  : fmt::format("a part along dim {}", fmt::join(cut, " and ")));
}

}  // namespace

std::string advice_on(const RecordedRun& run, const Reference& reference,
                      const judge::Divergence& found) {
  if (run.is_file || found.kind != ResultKind::kValues || found.step == 0) return "";
  const GoldenTensor* golden = reference.record.find(found.phase, found.step, found.tensor);
  if (!found.worst.problem.empty()) return golden ? other_layout(found.worst, *golden) : "";
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
