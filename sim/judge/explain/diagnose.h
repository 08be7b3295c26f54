// What an error looks like: the known algebra of sharding mistakes, tried on what the ranks held.
// Plain loops: this runs in the control process, which must run no tensor op.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim {

struct Explanation {
  std::string pattern;  // "every element is 2.00 x golden on all ranks; 2 is the size of tp"
  std::string likely;   // "summed over tp once too often, or not divided by its size"; "" unknown
  // Share of the squared difference that it accounts for, 0..1; -1: it says where, not how, or
  // there is but one number.
  double explained = -1;
};

// A lower precision's error beyond this many allowances is no rounding.
inline constexpr double kLargestRounding = 20;

// The scalar that a step is observed with where gradients carry a loss scale.
inline constexpr const char* kLossScale = "metric.loss_scale";

struct Symptoms {
  const Mesh& mesh;
  std::string precision;
  std::vector<const ResultRow*> rows;  // of the tensor on all ranks, right and wrong
  std::vector<const Piece*> pieces;    // what ranks with wrong values sent; may be empty
  double clip_factor = 1;              // golden, of that step; 1: no clipping
  double clip_ratio = 0;               // max_norm / norm of the golden, not capped; 0: no clipping
  int64_t microbatches = 1;            // of the rank with the most, in that step
  double loss_scale_factor = 1;        // the loss scale of that step, over the golden's
};

// Values that are wrong. First come problems and NaN. Then a table of simple hypotheses is tried
// side by side (another step or tensor of the golden, zeros, one factor, a missing sum, a narrow
// dtype): the one that explains most is claimed, of equals the simplest, the others after "or".
// Then the golden in another place, factors of samples, a part of the tensor. A cause is claimed
// only where it explains at least 98% of the squared difference and chance cannot, and only of the
// ranks on which it holds; the pattern then ends with how much it explains.
Explanation explain_values(const Symptoms& symptoms);

// Wrong in a low precision, by so little that rounding could be all of it.
bool may_be_rounding(const ResultRow& row);

// Ranks that differ although they must hold equal copies.
Explanation explain_replicas(const Symptoms& symptoms);

// "on all ranks", "on rank 2 only", "on ranks 1, 3 (tp 1)".
std::string ranks_clause(const Mesh& mesh, const std::vector<int64_t>& ranks,
                         const std::vector<int64_t>& among);

// Names for a number that comes from the mesh: "the size of tp", "the size of dp x tp"; "" when
// none.
std::string mesh_size_named(const Mesh& mesh, double number);

}  // namespace shardproof::sim
