// The numbers that ranks send each other in `validate`: exact integers of rank, position and round.
//
// A moved element is its sender's code, of as many bits as the dtype holds exactly: a hash, so that
// a flipped bit is no other rank's, position's or round's code.
//
// Addends of a reduction are so small that every partial sum is exact, in any order. Where the
// dtype has too few bits for that many members, one member's addend is not the neutral one, and
// the position says whose.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/call.h"

namespace shardproof::sim::validate {

enum class ElementType {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt8,
  kUint8,
  kBool
};
constexpr std::array<const char*, 9> names_of(ElementType) {
  return {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8", "bool"};
}
int64_t bytes_of(ElementType type);
bool is_float(ElementType type);

// One call: all codes of it are drawn from these.
struct CodeKey {
  uint64_t seed = 0;
  int64_t round = 0;
  ElementType type = ElementType::kFloat64;
};

// The bits in which two codes differ by chance; the fewer, the more elements a claim needs.
int code_bits(ElementType type);
int addend_bits(ElementType type, ReduceOp op, int64_t members);

int64_t moved_code(const CodeKey& key, int64_t rank, int64_t position);

// Whether a reduction of so many members can be exact in this dtype.
bool can_reduce(ElementType type, ReduceOp op, int64_t members);
// What the member of this number in a group of `members` adds; `rank` is its global rank.
int64_t addend_code(const CodeKey& key, ReduceOp op, int64_t member, int64_t members, int64_t rank,
                    int64_t position);
// The exact result of these addends, one of each member that takes part; an average divides by
// `members`, whoever takes part. For bool a sum is "or" and a product is "and".
int64_t reduced_code(ElementType type, ReduceOp op, const std::vector<int64_t>& addends,
                     int64_t members);

}  // namespace shardproof::sim::validate
