// Tensor parallelism, with or without sequence parallelism, as a style of the axis tp.
#pragma once

#include "parallel/style/style.h"
#include "parallel/tp/plan.h"

namespace shardproof {

// Replaces the layers in the decoder's slots by those of the plan. Declares the layout and the
// gradient rule of each parameter, and the layouts of each slot's inputs and output. With tp = 1
// only the plan is checked. With sequence parallelism rows have a multiple of tp positions (the
// embedding asserts it).
//
// place() throws the errors of resolve_plan and place_slot.
//
// Source   NeMo-RL parallelize.py, _parallelize_llama
class TensorParallel : public ParallelStyle {
 public:
  explicit TensorParallel(TensorParallelOptions options) : options_(std::move(options)) {}
  std::string_view name() const override { return "tp"; }
  std::vector<std::string> axes() const override { return {"tp"}; }
  void place(Decoder& model, const Mesh& mesh) const override;
  void install(Decoder& model, MeshComm& comm) const override;
  void cut_tokens(TokenCuts& cuts, const Mesh& mesh) const override;

 private:
  TensorParallelOptions options_;
};

}  // namespace shardproof
