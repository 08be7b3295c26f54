// Data parallelism as a style of the axis dp: each rank trains on its own samples; parameters are
// replicated, fully sharded, or sharded in several copies.
#pragma once

#include "parallel/data/shard_axes.h"
#include "parallel/style/style.h"

namespace shardproof {

// Throws Error(kRefused) for main gradients of sharded parameters or in float16.
void check_main_gradients(const FsdpOptions& options, const ShardAxes& axes, const Mesh& mesh,
                          at::ScalarType dtype);

// Parameters are sharded over all axes of tokens, not dp alone (shard_axes.h). It comes last: its
// store cuts what the other styles have placed, and gathers around their layers.
class DataParallel : public ParallelStyle {
 public:
  explicit DataParallel(FsdpOptions options) : options_(options) {}
  std::string_view name() const override { return "data"; }
  std::vector<std::string> axes() const override { return {"dp"}; }
  // Throws the errors of shard_axes() for parameters whose mean is over other axes.
  void place(Decoder& model, const Mesh& mesh) const override;
  void cut_tokens(TokenCuts& cuts, const Mesh& mesh) const override;
  // Throws Error(kRefused) when the number of copies does not divide dp, and as
  // check_main_gradients.
  std::unique_ptr<ParameterStore> store(const StoreSetup& setup) const override;

 private:
  FsdpOptions options_;
};

}  // namespace shardproof
