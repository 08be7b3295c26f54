// Where each element of a rank's local tensor lies in the golden's full tensor, as few long runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/layout.h"
#include "mesh/mesh.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/rank_list.h"
#include "tensor/tensor_view.h"

namespace shardproof::sim::judge {

struct IndexPlan {
  // A run of `length` elements, `local` elements into a row, `golden` elements after its offset.
  struct Run {
    int64_t local, golden, length;
  };

  std::vector<int64_t> global_shape;
  std::vector<int64_t> local_shape;  // shape that the rank's tensor must have
  // Of a golden that holds only some rows of dim 0 (sim/case/record/sampled_rows.h): these rows.
  // All below is then of those of them that the rank holds: `local` counts within kept_rows().
  std::vector<int64_t> drawn;
  std::vector<int64_t> kept;  // their places along the rank's dim 0, or its tokens
  int64_t undrawn = 0;        // elements that the rank holds of the full tensor's other rows
  std::string problem;        // why there is no plan; all below is then empty
  // For each dim, the golden index of each local index, -1 at padding. The token dims are one dim.
  std::vector<std::vector<int64_t>> dims;
  std::vector<int64_t> strides;               // of the golden, per entry of dims
  std::vector<int64_t> rows;                  // golden offset of each row of runs; -1: padding
  int64_t row_length = 1;                     // local elements per row
  std::vector<Run> runs;                      // within a row
  int64_t count = 0;                          // elements that the golden has too
  bool only_padding = false;                  // there are tokens, and all of them are padding
  uint64_t tokens = 0;                        // digest of the token map; 0 without one
  uint64_t covered = 0, coverage_of_all = 0;  // see ResultRow
  RankList replicas;                          // ranks that hold an equal copy by the layout
  std::string layout;                         // "S(0)tp"; "" for replicated

  std::vector<int64_t> golden_shape() const;
  // Offset in the rank's tensor of an offset in its kept rows.
  int64_t local_offset(int64_t offset) const;
  // Index in the full tensor of an offset in the golden.
  std::vector<int64_t> global_index(int64_t offset) const;

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

// Makes the plan of a tensor that `layout` cuts. `token_map` ([b, s] int64, or undefined) maps dims
// 0 and 1 before the cut to the golden's, see Observation. Ranks on `partial_axes` hold addends,
// not replicas. The plan has a `problem` when the layout or map does not fit. `drawn` are the rows
// that the golden holds; empty: all.
IndexPlan make_index_plan(const std::vector<int64_t>& global_shape, const Layout& layout,
                          const TensorView& token_map, const std::vector<std::string>& partial_axes,
                          const Mesh& mesh, int64_t rank, const std::vector<int64_t>& drawn = {});

// The rows of a rank's tensor that the plan compares, dim 0 (and 1, of tokens) in one; the tensor
// itself when the golden holds all.
TensorView kept_rows(const TensorView& local, const IndexPlan& plan);

// The golden indices of an offset in a tensor of `shape`.
std::vector<int64_t> unravel(int64_t offset, const std::vector<int64_t>& shape);

// Hash of one golden index along one entry of IndexPlan::dims. `covered` is the sum over elements
// of the products over dims.
uint64_t coverage_hash(size_t dim, int64_t index);

// Where elements count one by one, by their offsets in the golden: the sum of the hashes of those
// that `counts(offset)` takes, from `first` to before `end`, or of the elements of a plan.
template <class Counts>
uint64_t coverage_of(int64_t first, int64_t end, const Counts& counts) {
  uint64_t sum = 0;
  for (int64_t i = first; i < end; ++i) sum += counts(i) ? coverage_hash(0, i) : 0;
  return sum;
}
template <class Counts>
uint64_t coverage_of(const IndexPlan& plan, const Counts& counts) {
  uint64_t sum = 0;
  plan.for_each_run([&](int64_t, int64_t first, int64_t length) {
    sum += coverage_of(first, first + length, counts);
  });
  return sum;
}

// Strides in elements of a contiguous tensor of that shape.
std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape);

// Whether the ranks of a reference layout gave every element that a rank compares.

// Says how many elements of the plan no rank gave, or fewer ranks than the others; "" when all are
// there, as they are in the golden of one device.
std::string not_given(const GoldenTensor& golden, const IndexPlan& plan);

}  // namespace shardproof::sim::judge
