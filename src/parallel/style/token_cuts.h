// How the tokens of a global batch lie on a mesh. Each parallel style adds its part.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/training_choices.h"
#include "mesh/mesh.h"

namespace shardproof {

//   mesh               dp = 2, cp = 2, ulysses = 2, tp = 2 with sequence parallelism
//   sample_axes        dp         each rank works on its own samples
//   ring_axis          cp         cuts the positions of a row by ring_layout
//   inner_axes         ulysses    cut what the ring leaves of a row, in order
//   row_multiple       2          what tp cuts is not seen here: it only needs lengths that divide
struct TokenCuts {
  std::vector<std::string> sample_axes = {};
  std::string ring_axis = {};  // "": no axis cuts positions by a layout
  ContextLayout ring_layout = ContextLayout::kZigzag;
  std::vector<std::string> inner_axes = {};
  int64_t row_multiple = 1;
  std::string stage_axis = {};  // its ranks hold other chunks of the model; "": none
  // The least number of microbatches, not below the given one, that a step's order of actions
  // takes; empty: it takes all.
  std::function<int64_t(int64_t)> fitting_microbatches = {};

  // The axes that cut the positions of a row and have more than one rank, outer to inner.
  std::vector<std::string> position_axes(const Mesh& mesh) const;
  // The axes over which ranks hold different tokens: sample_axes and position_axes().
  std::vector<std::string> token_axes(const Mesh& mesh) const;
};

// Whether the rank is the first of those that work on the same samples in the same chunks.
bool is_first_of_samples(const TokenCuts& cuts, const Mesh& mesh, int64_t rank);

// The product of the axes' sizes, and this rank's coordinate on all of them, outer to inner.
int64_t size_of(const Mesh& mesh, const std::vector<std::string>& axes);
int64_t coordinate_of(const Mesh& mesh, const std::vector<std::string>& axes, int64_t rank);

}  // namespace shardproof
