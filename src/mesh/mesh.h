// A mesh: named axes, written outer to inner (dp, cp, ulysses, tp), over ranks 0..world_size-1.
//
// Where an axis is named, so may be several of them as one, and a part of it:
//   "dp+cp"       the flattened axis: its coordinate counts all of its ranks, outer to inner
//   "dp+cp%4"     its ranks in blocks of 4, the place within the block: what is cut within a block
//   "dp+cp//4"    which block
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof {

struct MeshAxis {
  std::string name;
  int64_t size;
};

class Mesh {
 public:
  static constexpr int64_t kMaxWorldSize = 65536;

  Mesh() = default;  // one rank, no axes
  // Axes outer to inner. Throws Error(kBadInput): size < 1, a name twice, over kMaxWorldSize ranks.
  explicit Mesh(std::vector<MeshAxis> axes);
  // The training mesh, outer to inner.
  static Mesh training(int64_t dp, int64_t cp, int64_t ulysses, int64_t tp);
  // "dp=1,cp=2,tp=2": any order, missing axes are 1. Throws Error(kBadInput): an unknown axis (with
  // the nearest known one), an axis twice, a size that is no positive integer.
  static Mesh parse(std::string_view text);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int64_t world_size() const;
  // Also of a flattened axis or a part of one; asserts that its blocks divide it.
  int64_t size(std::string_view axis) const;                       // 1 when the axis is missing
  int64_t coordinate(std::string_view axis, int64_t rank) const;   // 0 when the axis is missing
  int64_t rank_at(const std::vector<int64_t>& coordinates) const;  // one per axis, outer to inner
  // The ranks that share everything with `rank` but the axis, in order of their coordinate on it.
  std::vector<int64_t> peers_along(std::string_view axis, int64_t rank) const;
  // The same over several axes at once, ascending in rank order.
  std::vector<int64_t> peers_along(const std::vector<std::string>& axes, int64_t rank) const;
  // All groups along one axis, each as peers_along gives it, ordered by first member.
  std::vector<std::vector<int64_t>> groups_along(std::string_view axis) const;
  // "dp=2 tp=3" without axes of size 1; "one rank" when there is none.
  std::string describe() const;

  bool operator==(const Mesh& other) const;

 private:
  int64_t flattened_coordinate(std::string_view axis, int64_t rank) const;

  std::vector<MeshAxis> axes_;
};

}  // namespace shardproof
