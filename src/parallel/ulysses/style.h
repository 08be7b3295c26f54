// Ulysses as a style of the axis ulysses: each attention core exchanges sequence for heads.
#pragma once

#include "parallel/style/style.h"

namespace shardproof {

// Wraps every attention core, of any kind, into the all-to-alls over the axis ulysses. The trainer
// gives each rank its tokens with their positions: rank u holds part u of the core's sequence. With
// ulysses = 1 nothing changes.
//
// It comes after tensor parallelism, whose heads per rank it splits, and after context parallelism.
// place() throws Error(kRefused) when ulysses does not divide the query heads of a tp rank.
//
// Source   LightRFT parallel_utils.py; Jacobs et al., "DeepSpeed Ulysses", arXiv:2309.14509
class Ulysses : public ParallelStyle {
 public:
  std::string_view name() const override { return "ulysses"; }
  std::vector<std::string> axes() const override { return {"ulysses"}; }
  void place(Decoder& model, const Mesh& mesh) const override;
  void install(Decoder& model, MeshComm& comm) const override;
  void cut_tokens(TokenCuts& cuts, const Mesh& mesh) const override;
};

}  // namespace shardproof
