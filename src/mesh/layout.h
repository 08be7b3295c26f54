// How a full tensor is cut over a mesh: an ordered list of cuts. Arithmetic only, no tensors.
//
//   Layout({})                                      Replicate: every rank holds the full tensor
//   Layout({Cut::even(0, "tp")})                    Shard(0) over tp, sizes must divide
//   Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")})   FSDP of a shard of tensor parallelism
//
// A cut keeps, at this coordinate, some of the indices that the earlier cuts left along its dim.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "mesh/mesh.h"

namespace shardproof {

struct Cut {
  enum class Kind {
    kEven,      // n/size each; n must divide by size
    kChunk,     // torch.chunk's rule: ceil(n/size) each, the last ones fewer or none
    kPadded,    // the dim is padded to `padded_size` (index -1 is padding), then even
    kBlocks,    // the dim is a row of blocks (fused gate|up, q|k|v): each block is cut evenly
    kZigzag,    // 2*size chunks, coordinate r keeps chunks r and 2*size-1-r
    kRepeated,  // `parts` even parts, each held by size/parts neighboring ranks
    kHeldBy,    // all of them at `coordinates`, none elsewhere: the tensor is not on other ranks
  };
  int64_t dim = 0;
  std::string axis;
  Kind kind = Kind::kEven;
  std::vector<int64_t> blocks = {};       // kBlocks: lengths that sum to the dim's size
  int64_t padded_size = 0;                // kPadded: a multiple of the axis size, >= the dim's size
  int64_t parts = 0;                      // kRepeated: divides the axis size and the dim's size
  std::vector<int64_t> coordinates = {};  // kHeldBy: at least one, each on the axis

  static Cut even(int64_t dim, std::string axis) { return {.dim = dim, .axis = std::move(axis)}; }
  static Cut chunk(int64_t dim, std::string axis) {
    return {.dim = dim, .axis = std::move(axis), .kind = Kind::kChunk};
  }
  static Cut padded(int64_t dim, std::string axis, int64_t padded_size) {
    return {.dim = dim, .axis = std::move(axis), .kind = Kind::kPadded, .padded_size = padded_size};
  }
  static Cut in_blocks(int64_t dim, std::string axis, std::vector<int64_t> blocks) {
    return {
        .dim = dim, .axis = std::move(axis), .kind = Kind::kBlocks, .blocks = std::move(blocks)};
  }
  static Cut zigzag(int64_t dim, std::string axis) {
    return {.dim = dim, .axis = std::move(axis), .kind = Kind::kZigzag};
  }
  static Cut repeated(int64_t dim, std::string axis, int64_t parts) {
    return {.dim = dim, .axis = std::move(axis), .kind = Kind::kRepeated, .parts = parts};
  }
  static Cut held_by(std::string axis, std::vector<int64_t> coordinates) {  // cuts dim 0
    return {.axis = std::move(axis), .kind = Kind::kHeldBy, .coordinates = std::move(coordinates)};
  }
  bool operator==(const Cut&) const = default;
};

class Layout {
 public:
  Layout() = default;  // Replicate
  explicit Layout(std::vector<Cut> cuts) : cuts_(std::move(cuts)) {}

  const std::vector<Cut>& cuts() const { return cuts_; }
  bool replicated() const { return cuts_.empty(); }
  bool cuts_dim(int64_t dim) const;
  void append(Cut cut) { cuts_.push_back(std::move(cut)); }

  // Global index of each local position along `dim` (of global size `global_size`) at `rank`;
  // -1 where the position is padding. Throws Error(kRefused) when a cut does not fit the size.
  std::vector<int64_t> indices(int64_t dim, int64_t global_size, const Mesh& mesh,
                               int64_t rank) const;
  // The same layout with every dim counted from the front, for a tensor of `dim_count` dims. Throws
  // Error(kBadInput) when a cut names a dim that the tensor does not have.
  Layout resolved(int64_t dim_count) const;
  // Local shape of a tensor of `global_shape` at `rank`. Negative dims in cuts count from the end.
  std::vector<int64_t> local_shape(const std::vector<int64_t>& global_shape, const Mesh& mesh,
                                   int64_t rank) const;
  // Groups of ranks that must hold equal copies. They cover the world and include singletons.
  std::vector<std::vector<int64_t>> replica_groups(const Mesh& mesh) const;
  std::vector<int64_t> replicas_of(const Mesh& mesh, int64_t rank) const;
  // "R", "S(0)tp", "S(0)tp S(0)dp"; padded "S(0)tp:padded96", blocks "B(0)tp:4|4", zigzag "Z(1)cp",
  // repeated "S(0)tp:parts2", held by some coordinates "H(0)pp:0|3".
  std::string describe() const;

  bool operator==(const Layout&) const = default;

 private:
  std::vector<Cut> cuts_;
};

// Smallest multiple of `divisor` that is >= value.
constexpr int64_t round_up(int64_t value, int64_t divisor) {
  return (value + divisor - 1) / divisor * divisor;
}

}  // namespace shardproof
