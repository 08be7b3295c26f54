// Where each element of a rank's local tensor lies in the golden's full one, as few long runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "mesh/mesh.h"

namespace shardproof::sim {

struct IndexPlan {
  // `length` consecutive elements, `local` past the start of a row and `golden` past its offset.
  struct Run {
    int64_t local, golden, length;
  };

  std::vector<int64_t> global_shape;
  std::vector<int64_t> local_shape;  // what the rank's tensor must look like
  std::string problem;               // why there is no plan; all below is empty then
  // The dims with the two token dims made one: golden index of each local one, -1 padding.
  std::vector<std::vector<int64_t>> dims;
  std::vector<int64_t> strides;               // in the golden, per entry of dims
  std::vector<int64_t> rows;                  // golden offset of each row of runs, -1: padding
  int64_t row_length = 1;                     // local elements per row
  std::vector<Run> runs;                      // within a row
  int64_t count = 0;                          // elements that the golden has
  bool only_padding = false;                  // there are tokens, and all are padding
  uint64_t tokens = 0;                        // digest of the token map, 0 without one
  uint64_t covered = 0, coverage_of_all = 0;  // see ResultRow
  std::vector<int64_t> replicas;              // ranks that the layout says hold an equal copy
  std::string layout;                         // "S(0)tp", "" replicated

  // Calls use(local_offset, golden_offset, length) for every run, in local order.
  template <class Use>
  void for_each_run(const Use& use) const {
    for (size_t row = 0; row < rows.size(); ++row) {
      if (rows[row] < 0) continue;
      const int64_t base = static_cast<int64_t>(row) * row_length;
      for (const Run& run : runs) use(base + run.local, rows[row] + run.golden, run.length);
    }
  }
};

// The plan of a tensor that `layout` cuts. `token_map` ([b, s] int64 on the CPU, or undefined) maps
// dims 0 and 1 before the cut to the golden's, see Observation. Ranks on `partial_axes` hold
// addends, not replicas. A layout or map that does not fit gives a plan with a `problem`.
IndexPlan make_index_plan(const std::vector<int64_t>& global_shape, const Layout& layout,
                          const at::Tensor& token_map, const std::vector<std::string>& partial_axes,
                          const Mesh& mesh, int64_t rank);

// The golden indices of an offset in a tensor of `shape`.
std::vector<int64_t> unravel(int64_t offset, const std::vector<int64_t>& shape);

// Hash of one golden index along one entry of IndexPlan::dims; products over dims, summed over
// elements, make `covered`.
uint64_t coverage_hash(size_t dim, int64_t index);

}  // namespace shardproof::sim
