// Pipeline parallelism as a style of the axis pp: each rank holds some stages of the model.
#pragma once

#include "parallel/pp/placement.h"
#include "parallel/pp/split.h"
#include "parallel/style/style.h"

namespace shardproof {

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int64_t chunks = 1;  // of each rank
  int64_t group = 0;   // Pipeline::group
  BoundaryShapes shapes = BoundaryShapes::kKnown;
  SplitRules split = {};
};

Pipeline pipeline_of(const PipelineOptions& options, const Mesh& mesh);
// The first stage in which something is trained. Stages before it have no backward, and no gradient
// is sent to them.
int64_t first_trained_stage(Decoder& model, const PipelineOptions& options, const Mesh& mesh);

// Declares who holds which parameter and slot (Cut::held_by), gives each rank its chunks, their
// order and the messages between them. A tied embedding is held by both ends, and one of a model
// with extra heads by their stage too; its gradient is the sum over them. With pp = 1 nothing
// changes.
//
// It comes after the styles that replace layers, and before data, whose units are those of a chunk.
class PipelineParallel : public ParallelStyle {
 public:
  explicit PipelineParallel(PipelineOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "pp"; }
  std::vector<std::string> axes() const override { return {"pp"}; }
  // Throws Error(kRefused) as check_schedule and split_model do.
  void place(Decoder& model, const Mesh& mesh) const override;
  void install(Decoder& model, MeshComm& comm) const override;
  void cut_tokens(TokenCuts& cuts, const Mesh& mesh) const override;
  // Throws Error(kRefused) as check_microbatches does.
  std::optional<std::vector<Action>> schedule(const Mesh& mesh, int64_t rank, int64_t microbatches,
                                              bool backward) const override;
  std::unique_ptr<StageLink> link(const StoreSetup& setup) const override;

 private:
  PipelineOptions options_;
};

}  // namespace shardproof
