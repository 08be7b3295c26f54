// Explains an error by the known algebra of sharding mistakes, tried on the values that ranks held.
// It uses plain loops: the control process, where it runs, must run no tensor op.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/tolerance.h"

namespace shardproof::sim::judge {

struct Explanation {
  std::string pattern;  // "every element is 2.00 x golden on all ranks; 2 is the size of tp"
  std::string likely;   // "summed over tp once too often, or not divided by its size"; "" unknown
  bool is_of_counts = false;  // `likely` is only a number that is a quotient of two counts
};

// The golden's gradient of the samples of one microbatch alone, up to a factor.
struct MicrobatchGradient {
  int64_t microbatch = 0;
  std::vector<int64_t> samples = {};
  const double* values = nullptr;  // of the whole tensor, in row-major order
};

// A count of the step, which is judged exactly in every precision.
struct WrongCount {
  std::string name;  // "metric.tokens"
  double actual = 0, golden = 0;
  std::string text() const;  // "; metric.tokens is 58 and should be 39"
};

struct Symptoms {
  const Mesh& mesh;
  Precision precision;
  std::vector<const ResultRow*> rows;      // rows of the tensor on all ranks, right and wrong
  std::vector<const Piece*> pieces;        // from ranks with wrong values; may be empty
  std::vector<const Piece*> addends = {};  // where `pieces` are sums: their addends
  double clip_factor = 1;                  // of the golden in that step; 1: no clipping
  double clip_ratio = 0;         // max_norm / norm of the golden, not capped; 0: no clipping
  int64_t microbatches = 1;      // of the rank that has the most in that step
  int64_t chunks = 1;            // of the model on each rank of a pipeline
  double loss_scale_factor = 1;  // loss scale of that step over the golden's
  // The factor of the step's first gradients, if it is one on all ranks; 0: none.
  double gradient_factor = 0;
  std::vector<MicrobatchGradient> microbatch_gradients = {};  // of all microbatches, or none
  std::vector<WrongCount> wrong_counts = {};
  std::vector<std::string> summed_axes = {};  // of sums: each is the value of all ranks along these
};

// Explains wrong values. Facts come first: problems, NaN, draws. Then every hypothesis makes a
// proposal (hypotheses.h). A proposal is a claim only if it explains at least 98% of the squared
// difference and chance cannot. The claim with the best score wins:
//
//   score = nats gained - description length
//
// In float64 a claim that leaves more than rounding names no cause: something else is wrong too.
//
// Nats gained are minus the logarithm of the probability that random values of the golden's size
// come as near to the proposal. Claims whose score is at most 3 lower follow after "or". Without a
// claim the text says where the values are wrong, or by how much.
Explanation explain_values(const Symptoms& symptoms);

// Whether the row is wrong in a low precision by so little that rounding could be the cause.
bool may_be_rounding(const ResultRow& row);

// Explains wrong weights of ranks that a policy refits, which follow those of its mesh from rank
// `first` on. The symptoms have the mesh of these ranks. Nothing is claimed of gradients or sums.
Explanation explain_received(const Symptoms& symptoms, int64_t first);

// Explains ranks that differ although they must hold equal copies, each within the allowance.
Explanation explain_replicas(const Symptoms& symptoms);

}  // namespace shardproof::sim::judge
