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
};

// The scalar that a step is observed with where gradients carry a loss scale.
inline constexpr const char* kLossScale = "metric.loss_scale";

struct Symptoms {
  const Mesh& mesh;
  std::string precision;
  std::vector<const ResultRow*> rows;      // of the tensor on all ranks, right and wrong
  std::vector<const Piece*> pieces;        // what ranks with wrong values sent; may be empty
  std::vector<const Piece*> addends = {};  // where `pieces` are sums: what was summed
  double clip_factor = 1;                  // golden, of that step; 1: no clipping
  double clip_ratio = 0;         // max_norm / norm of the golden, not capped; 0: no clipping
  int64_t microbatches = 1;      // of the rank with the most, in that step
  double loss_scale_factor = 1;  // the loss scale of that step, over the golden's
};

// Values that are wrong. First come facts: problems, NaN, draws. Then every hypothesis proposes
// (hypotheses.h), and only what explains at least 98% of the squared difference and what chance
// cannot do is a claim. Of the claims the one with the best score stands:
//
//   score = nats gained - description length
//
// Nats gained: minus the logarithm of the probability that random values of the golden's size come
// as near to what was proposed. Others whose score is at most 3 less follow after "or". Without a
// claim it says where the values are wrong, or by how much.
Explanation explain_values(const Symptoms& symptoms);

// Wrong in a low precision, by so little that rounding could be all of it.
bool may_be_rounding(const ResultRow& row);

// Ranks that differ although they must hold equal copies.
Explanation explain_replicas(const Symptoms& symptoms);

}  // namespace shardproof::sim
