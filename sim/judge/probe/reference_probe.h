// The probe of a rank of a reference layout: puts the rank's piece of every observation where the
// ranks of another layout read it (sim/case/record/reference_pieces.h), and keeps none.
//
// An element has one giver: the first rank that holds it by its layout. Addends of several ranks
// are added up as they come. What is not written stays known as not given.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/reference_pieces.h"
#include "sim/judge/diff/index_plan.h"

namespace shardproof::sim::judge {

// The sizes that tell the full shape of an observation, which its piece does not show.
struct FullSizes {
  std::map<std::string, std::vector<int64_t>> parameters = {};  // by name
  int64_t samples = 0, seq_len = 0;                             // of the global batch
  int64_t vocab_size = 0, intermediate_size = 0;                // their parts may be unequal
  int64_t shared_width = 0;  // of the MLP beside experts, as above
};

// The full shape of what `observation` is a piece of: a parameter's for its gradient and its state;
// [samples, seq_len, ..] where tokens are cut, with the other dims as the layout cuts them.
std::vector<int64_t> full_shape_of(const Observation& observation, const FullSizes& sizes,
                                   const Mesh& mesh);

class ReferenceProbe final : public Probe {
 public:
  ReferenceProbe(const CaseSpec& spec, const Mesh& mesh, int64_t rank, FullSizes sizes);

  bool listens(Phase phase) const override;
  // Throws Error(kFailed) for a piece that does not fit its declared layout, and as PiecesFile
  // does.
  void observe(const Observation& observation) override;
  // Writes what this rank gave. Call it once, at the end.
  void finish() const { pieces_.write(folder_); }

 private:
  // Sets `finite`, and for the first giver the magnitude, from all rows of the piece: also from
  // those that the case does not sample.
  static void measure(const TensorView& local, const IndexPlan& plan, double scale, bool first,
                      GivenPiece& piece);
  void put(const TensorView& local, const IndexPlan& plan, double scale, bool addend, bool first,
           const GivenPiece& piece) const;

  std::string folder_;
  bool activations_;
  int64_t sample_rows_, seed_;
  Mesh mesh_;
  int64_t rank_;
  FullSizes sizes_;
  RankPieces pieces_;
};

}  // namespace shardproof::sim::judge
