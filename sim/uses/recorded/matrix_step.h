// Judges the steps of a matrix optimizer (Muon) by what the rank itself had: the momentum from its
// state before and its gradient, and the update from the whole momentum, which is put together from
// the ranks' pieces and made orthogonal again in float64, in the blocks that the golden declares.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/uses/recorded/newton_schulz.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

struct MatrixVerdict {
  enum class Kind { kUnknown, kRight, kWrong };
  Kind kind = Kind::kUnknown;
  std::string text = "";  // of kRight the reason of an unresolved row, of kWrong its problem
};

class MatrixSteps {
 public:
  MatrixSteps(const RecordedRun& run, const Reference& reference);

  // Of a parameter or of its momentum after a step. kUnknown for any other piece, for a matrix that
  // is too large, where rounding hides the update, and where the golden's own update is not the
  // declared one.
  const MatrixVerdict& of(const RecordedPiece& piece);

 private:
  using Key = std::pair<int64_t, std::string>;  // step, and name of the tensor
  struct Update {
    Matrix whole;       // orthogonal, in the declared blocks
    Matrix momentum;    // what it is made of
    double factor = 0;  // the golden's update in units of it
    double decay = 0;   // what the golden's update takes of the matrix before it
    double narrow = 0;  // by how much of itself it moves where bfloat16 computes it
    bool is_known = false;
  };

  MatrixVerdict judge(const RecordedPiece& piece);
  MatrixVerdict judge_update(const RecordedPiece& piece, const MatrixRule& rule);
  MatrixVerdict judge_momentum(const RecordedPiece& piece, const MatrixRule& rule) const;
  std::string cause_of(const RecordedPiece& piece, const MatrixRule& rule, const Update& update,
                       const Values& moved, const Values& then, double unlike) const;
  std::vector<Matrix> own_parts(const RecordedPiece& piece, const Matrix& momentum) const;
  const Update& update_of(const RecordedPiece& piece, const MatrixRule& rule);
  // The whole tensor, with the rank's own elements where ranks hold copies; empty: some are
  // missing.
  Values gathered(int64_t rank, int64_t step, const std::string& name) const;
  const RecordedPiece* find(const RecordedPiece& like, int64_t step, const std::string& name) const;
  double clip_of(int64_t rank, int64_t step) const;

  const RecordedRun& run_;
  const Reference& reference_;
  std::map<Key, std::vector<const RecordedPiece*>> pieces_;
  std::map<const RecordedPiece*, MatrixVerdict> verdicts_;
  std::map<std::tuple<int64_t, std::string, uint64_t>, Update> updates_;  // of equal momenta
};

}  // namespace shardproof::sim::recorded
