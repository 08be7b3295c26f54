// A mesh: named axes, written outer to inner, over ranks 0..world_size-1. training_axes.h lists
// those of a training mesh. A part is another view of the same ranks, which the axes do not give:
//
//   axes    dp = 2, cp = 2, tp = 2      rank = (dp_rank * 2 + cp_rank) * 2 + tp_rank
//   part    ep, stride 2, size 4        coordinate = (rank / 2) % 4: experts over dp and cp
//
// Wherever an axis is named, the name may be that of a part, or several axes as one, or blocks of
// those:
//
//   "dp+cp"       the flattened axis: its coordinate counts all of its ranks, outer to inner
//   "dp+cp%4"     blocks of 4 of its ranks: the coordinate is the position within the block
//   "dp+cp//4"    the same blocks: the coordinate is the number of the block
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/training_axes.h"

namespace shardproof {

struct MeshAxis {
  std::string name;
  int64_t size;
  bool operator==(const MeshAxis&) const = default;
};

// A part does not change the number of ranks.
struct MeshPart {
  std::string name;
  int64_t stride;  // ranks between two neighbors
  int64_t size;
  bool operator==(const MeshPart&) const = default;
};

class Mesh {
 public:
  static constexpr int64_t kMaxWorldSize = 65536;

  Mesh() = default;  // one rank, no axes
  // Axes outer to inner. Throws Error(kBadInput) for a size < 1, a repeated name, over
  // kMaxWorldSize ranks, and a part whose stride * size does not divide the ranks.
  explicit Mesh(std::vector<MeshAxis> axes, std::vector<MeshPart> parts = {});
  // All axes of kTrainingAxes, also those of one rank; with experts over several ranks also the
  // parts edp, ep and etp. Throws Error(kBadInput), with sizes that work, when ep * etp does not
  // divide the ranks of a stage.
  static Mesh training(const AxisSizes& sizes);
  // Parses "dp=1,cp=2,tp=2,ep=4" in any order; missing sizes are 1. Throws Error(kBadInput) for an
  // unknown name (with the nearest known one), a repeated name, and a size that is not a positive
  // integer.
  static Mesh parse(std::string_view text);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  const std::vector<MeshPart>& parts() const { return parts_; }
  std::vector<std::string> names() const;  // of the axes and parts of several ranks
  int64_t world_size() const;
  // Blocks must divide their axes.
  int64_t size(std::string_view axis) const;                      // 1 when the axis is missing
  int64_t coordinate(std::string_view axis, int64_t rank) const;  // 0 when the axis is missing
  std::vector<int64_t> coordinates(std::string_view axis) const;  // of each rank
  // The ranks that differ from `rank` on this axis only, in order of their coordinate on it.
  std::vector<int64_t> peers_along(std::string_view axis, int64_t rank) const;
  // The ranks that are reached by steps along any of the axes, in ascending order.
  std::vector<int64_t> peers_along(const std::vector<std::string>& axes, int64_t rank) const;
  // "dp=2 tp=3", without axes of size 1, and its parts: "dp=4, experts edp=2 ep=2"; "one rank" when
  // no other axis is left.
  std::string describe() const;

  bool operator==(const Mesh&) const = default;

 private:
  // coordinate = the digits (rank / stride) % size, outer to inner
  struct Digit {
    int64_t stride, size;
  };
  std::vector<Digit> digits_of(std::string_view name) const;

  std::vector<MeshAxis> axes_;
  std::vector<MeshPart> parts_;
};

}  // namespace shardproof
