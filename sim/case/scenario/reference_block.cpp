// The layout that a case is compared with instead of one device, in a scenario file.
#include <fmt/format.h>

#include "base/error.h"
#include "sim/case/reference.h"
#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

bool is_same_layout(const ParallelSpec& a, const ParallelSpec& b) {
  const bool sharded_alike = a.data_parallel == b.data_parallel || (a.dp == 1 && b.dp == 1);
  const bool sequence_alike = a.sequence_parallel == b.sequence_parallel || a.tp == 1;
  const AxisSizes &sizes_of_a = a, &sizes_of_b = b;
  return sizes_of_a == sizes_of_b && sharded_alike && sequence_alike;
}

}  // namespace

void check_reference(const Settings& settings, const CaseSpec& spec) {
  const std::string key = settings.given_below("reference.");
  if (key.empty()) return;
  if (!spec.reference.is_set()) {
    settings.fail(key, "the reference has no mesh", "name its axes: reference.mesh: {tp: 2}");
  }
  if (!spec.is(ModelWorkload::kTrain) && !spec.is(ModelWorkload::kLogprobs)) {
    settings.fail(key,
                  fmt::format("workload {} cannot be compared with another layout", spec.workload),
                  "remove the reference, or write workload: train or logprobs");
  }
  if (spec.precision == Precision::kFloat16) {
    settings.fail(key, "a reference layout in float16, where some runs skip steps",
                  "write precision: float64, float32 or bfloat16");
  }
  const bool clips = spec.loss.kind == LossKind::kClippedPolicyGradient;
  if (spec.precision != Precision::kFloat64 && clips) {
    settings.fail(key,
                  fmt::format("a reference layout in {} of a loss that clips, whose decisions "
                              "roundings change",
                              spec.precision),
                  "write precision: float64, or another loss");
  }
  if (!spec.judged) {
    settings.fail(key, "a reference for a case that is not judged", "remove one of them");
  }
  const ParallelSpec layout = reference_layout(spec.reference);
  try {
    layout.mesh();
  } catch (const Error& error) {
    settings.fail(key, "the reference: " + error.fact(), error.fix());
  }
  if (!is_same_layout(layout, spec.parallel)) return;
  settings.fail(key,
                fmt::format("the reference {} is the layout of the case itself, so that nothing "
                            "would be tested",
                            reference_name(spec.reference)),
                "name another mesh");
}

}  // namespace shardproof::sim
