// Each kind of cut as arithmetic on a row of indices.
//
//   n = 12, size = 3     rank 0            rank 1            rank 2
//   even, chunk          0 1 2 3           4 5 6 7           8 9 10 11
//   zigzag               0 1 | 10 11       2 3 | 8 9         4 5 | 6 7
//   blocks {9, 3}        0 1 2 | 9         3 4 5 | 10        6 7 8 | 11
//   n = 7: chunk         0 1 2             3 4 5             6
//   n = 7: padded to 9   0 1 2             3 4 5             6 -1 -1
//   parts = 1            everything        everything        everything
//   held by {0, 2}       everything        nothing           everything
#include "mesh/cut.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace shardproof {
namespace {

using Indices = std::vector<int64_t>;

[[noreturn]] void bad_cut(const Cut& cut, const std::string& why) {
  throw_bad_input(fmt::format("the cut {} {}", describe_cut(cut), why), "correct the layout");
}

void append_range(Indices& out, const Indices& in, int64_t begin, int64_t count) {
  out.insert(out.end(), in.begin() + begin, in.begin() + begin + count);
}

Indices range(const Indices& in, int64_t begin, int64_t count) {
  return Indices(in.begin() + begin, in.begin() + begin + count);
}

Indices cut_evenly(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  const auto count = static_cast<int64_t>(in.size());
  if (count % size != 0) {
    throw_refused(
        fmt::format("dim {} of size {} does not divide by {}={}", cut.dim, count, cut.axis, size),
        fmt::format("choose a {} size that divides {}", cut.axis, count));
  }
  return range(in, coordinate * (count / size), count / size);
}

Indices cut_in_chunks(const Indices& in, int64_t size, int64_t coordinate) {
  const auto count = static_cast<int64_t>(in.size());
  const int64_t chunk = ceil_divide(count, size);
  const int64_t begin = std::min(coordinate * chunk, count);
  return range(in, begin, std::min(chunk, count - begin));
}

Indices cut_padded(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  const auto count = static_cast<int64_t>(in.size());
  if (cut.padded_size < count || cut.padded_size % size != 0) {
    throw_refused(fmt::format("dim {} of size {} cannot be padded to {} over {}={}", cut.dim, count,
                              cut.padded_size, cut.axis, size),
                  fmt::format("pad it to {}", round_up(count, size)));
  }
  const int64_t share = cut.padded_size / size;
  Indices out(static_cast<size_t>(share), -1);
  for (int64_t i = 0; i < share && coordinate * share + i < count; ++i) {
    out[i] = in[coordinate * share + i];
  }
  return out;
}

void check_blocks(const Cut& cut, int64_t count) {
  int64_t sum = 0;
  for (const int64_t block : cut.blocks) {
    const auto next = checked_add(sum, block);
    if (block < 0 || !next) bad_cut(cut, fmt::format("has a block of length {}", block));
    sum = *next;
  }
  if (sum != count) {
    bad_cut(cut, fmt::format("has blocks that sum to {} over a dim of size {}", sum, count));
  }
}

Indices cut_blocks(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  check_blocks(cut, static_cast<int64_t>(in.size()));
  Indices out;
  int64_t begin = 0;
  for (const int64_t block : cut.blocks) {
    if (block % size != 0) {
      throw_refused(fmt::format("a block of {} in dim {} does not divide by {}={}", block, cut.dim,
                                cut.axis, size),
                    fmt::format("choose a {} size that divides {}", cut.axis, block));
    }
    append_range(out, in, begin + coordinate * (block / size), block / size);
    begin += block;
  }
  return out;
}

// Chunks `coordinate` and 2*size-1-coordinate of 2*size equal chunks.
Indices cut_zigzag(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  if (size == 1) return in;
  const auto length = static_cast<int64_t>(in.size());
  const int64_t chunk_count = 2 * size;
  if (length % chunk_count != 0) {
    throw_refused(fmt::format("a sequence of {} does not split into 2*{}={} zigzag chunks", length,
                              cut.axis, chunk_count),
                  fmt::format("pad the sequence to {}, or set {}=1", round_up(length, chunk_count),
                              cut.axis));
  }
  const int64_t chunk = length / chunk_count;
  Indices out = range(in, coordinate * chunk, chunk);
  append_range(out, in, (chunk_count - 1 - coordinate) * chunk, chunk);
  return out;
}

Indices cut_repeated(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  const auto count = static_cast<int64_t>(in.size());
  if (cut.parts < 1) bad_cut(cut, "has no parts");
  if (size % cut.parts != 0 || count % cut.parts != 0) {
    throw_refused(fmt::format("dim {} of size {} in {} parts does not spread over {}={}", cut.dim,
                              count, cut.parts, cut.axis, size),
                  fmt::format("choose a {} size that {} divides or that divides {}", cut.axis,
                              cut.parts, cut.parts));
  }
  const int64_t share = count / cut.parts;
  return range(in, piece_of(cut, size, coordinate) * share, share);
}

bool is_holder(const Cut& cut, int64_t coordinate) {
  return std::ranges::find(cut.coordinates, coordinate) != cut.coordinates.end();
}

Indices held(const Cut& cut, const Indices& in, int64_t size, int64_t coordinate) {
  const auto [least, most] = std::minmax_element(cut.coordinates.begin(), cut.coordinates.end());
  if (cut.coordinates.empty() || *least < 0 || *most >= size) {
    bad_cut(cut, fmt::format("names coordinates that {}={} does not have", cut.axis, size));
  }
  return is_holder(cut, coordinate) ? in : Indices{};
}

}  // namespace

Indices apply_cut(const Cut& cut, const Indices& indices, int64_t axis_size, int64_t coordinate) {
  switch (cut.kind) {
    case Cut::Kind::kEven:
      return cut_evenly(cut, indices, axis_size, coordinate);
    case Cut::Kind::kChunk:
      return cut_in_chunks(indices, axis_size, coordinate);
    case Cut::Kind::kPadded:
      return cut_padded(cut, indices, axis_size, coordinate);
    case Cut::Kind::kBlocks:
      return cut_blocks(cut, indices, axis_size, coordinate);
    case Cut::Kind::kZigzag:
      return cut_zigzag(cut, indices, axis_size, coordinate);
    case Cut::Kind::kRepeated:
      return cut_repeated(cut, indices, axis_size, coordinate);
    case Cut::Kind::kHeldBy:
      return held(cut, indices, axis_size, coordinate);
  }
  SHARDPROOF_ASSERT(false, "unknown kind of cut");
}

int64_t piece_of(const Cut& cut, int64_t axis_size, int64_t coordinate) {
  if (cut.kind == Cut::Kind::kHeldBy) return is_holder(cut, coordinate) ? 0 : 1;
  if (cut.kind != Cut::Kind::kRepeated) return coordinate;
  return coordinate * cut.parts / axis_size;
}

std::string describe_cut(const Cut& cut) {
  switch (cut.kind) {
    case Cut::Kind::kEven:
    case Cut::Kind::kChunk:
      return fmt::format("S({}){}", cut.dim, cut.axis);
    case Cut::Kind::kPadded:
      return fmt::format("S({}){}:padded{}", cut.dim, cut.axis, cut.padded_size);
    case Cut::Kind::kBlocks:
      return fmt::format("B({}){}:{}", cut.dim, cut.axis, fmt::join(cut.blocks, "|"));
    case Cut::Kind::kZigzag:
      return fmt::format("Z({}){}", cut.dim, cut.axis);
    case Cut::Kind::kRepeated:
      return fmt::format("S({}){}:parts{}", cut.dim, cut.axis, cut.parts);
    case Cut::Kind::kHeldBy:
      return fmt::format("H({}){}:{}", cut.dim, cut.axis, fmt::join(cut.coordinates, "|"));
  }
  return "?";
}

}  // namespace shardproof
