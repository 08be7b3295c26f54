// Context parallelism as a style of the axis cp: the attention core becomes a ring.
#pragma once

#include "parallel/cp/rotation.h"
#include "parallel/style/style.h"

namespace shardproof {

struct ContextParallelOptions {
  Rotation rotation = Rotation::kSendRecv;
  // The cut of a row's positions over cp, which divides their number.
  ContextLayout layout = ContextLayout::kZigzag;
};

// Replaces every attention core by ring attention over the axis cp. The other layers process each
// token independently and stay: the trainer gives each rank its tokens with their positions
// (ContextCut), and the step's context their layout. With cp = 1 nothing changes.
//
// It comes before Ulysses, which wraps the ring.
//
// Source   NeMo-RL dtensor_policy_worker.py, context_parallel around the model
class ContextParallel : public ParallelStyle {
 public:
  explicit ContextParallel(ContextParallelOptions options) : options_(options) {}
  std::string_view name() const override { return "cp"; }
  std::vector<std::string> axes() const override { return {"cp"}; }
  void install(Decoder& model, MeshComm& comm) const override;
  void cut_tokens(TokenCuts& cuts, const Mesh& mesh) const override;

 private:
  ContextParallelOptions options_;
};

}  // namespace shardproof
