#include "sim/uses/validate/codes.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof::sim::validate {
namespace {

constexpr int64_t kFewValues = 4;  // with fewer values to choose from, one member counts at a time

// Integers below 2^bits are exact, and so are sums of non-negative ones below it.
int exact_bits(ElementType type) {
  constexpr std::array<int, 9> kBits = {52, 24, 11, 8, 52, 31, 7, 8, 1};
  return kBits.at(static_cast<size_t>(type));
}

bool is_signed(ElementType type) {
  return type != ElementType::kUint8 && type != ElementType::kBool;
}

uint64_t hash_of(const CodeKey& key, int64_t rank, int64_t position) {
  const uint64_t place = static_cast<uint64_t>(position) * 0x9e3779b97f4a7c15ULL;
  const uint64_t whose = static_cast<uint64_t>(rank) * 0xc2b2ae3d27d4eb4fULL;
  return mix_bits(mix_bits(key.seed + static_cast<uint64_t>(key.round)) ^ mix_bits(whose + 1) ^
                  mix_bits(place + 2));
}

// A number below `limit`, which is at least 1.
int64_t below(uint64_t hash, int64_t limit) {
  return static_cast<int64_t>((hash >> 1) % static_cast<uint64_t>(limit));
}

// The member whose addend at this position is not the neutral one.
bool is_turn(const CodeKey& key, int64_t member, int64_t turns, int64_t position) {
  return (position + key.round) % turns == member;
}

// How many values an addend of a sum can have.
int64_t choices_of(ElementType type, ReduceOp op, int64_t members) {
  const int64_t all = int64_t{1} << exact_bits(type);
  return op == ReduceOp::kAvg ? all / members / members : all / members;
}

int64_t summand(const CodeKey& key, ReduceOp op, int64_t member, int64_t members, int64_t rank,
                int64_t position) {
  const int64_t unit = op == ReduceOp::kAvg ? members : 1;
  const int64_t choices = choices_of(key.type, op, members);
  if (choices < kFewValues) return is_turn(key, member, members, position) ? unit : 0;
  return unit * (1 + below(hash_of(key, rank, position), choices - 1));
}

}  // namespace

int64_t bytes_of(ElementType type) {
  constexpr std::array<int64_t, 9> kBytes = {8, 4, 2, 2, 8, 4, 1, 1, 1};
  return kBytes.at(static_cast<size_t>(type));
}

bool is_float(ElementType type) { return type <= ElementType::kBFloat16; }

int code_bits(ElementType type) { return exact_bits(type); }

int addend_bits(ElementType type, ReduceOp op, int64_t members) {
  if (type == ElementType::kBool || op == ReduceOp::kProduct) return 1;
  if (op == ReduceOp::kMax || op == ReduceOp::kMin) return exact_bits(type);
  const int64_t choices = choices_of(type, op, members);
  return choices < kFewValues ? 1 : std::bit_width(static_cast<uint64_t>(choices)) - 1;
}

int64_t moved_code(const CodeKey& key, int64_t rank, int64_t position) {
  return below(hash_of(key, rank, position), int64_t{1} << exact_bits(key.type));
}

bool can_reduce(ElementType type, ReduceOp op, int64_t members) {
  if (op == ReduceOp::kAvg) {
    return is_float(type) && members <= int64_t{1} << exact_bits(type);
  }
  return true;
}

int64_t addend_code(const CodeKey& key, ReduceOp op, int64_t member, int64_t members, int64_t rank,
                    int64_t position) {
  const bool any = op == ReduceOp::kSum || op == ReduceOp::kMax;
  if (key.type == ElementType::kBool) {  // half of the positions are nobody's
    return is_turn(key, member, 2 * members, position) == any ? 1 : 0;
  }
  if (op == ReduceOp::kSum || op == ReduceOp::kAvg) {
    return summand(key, op, member, members, rank, position);
  }
  if (op == ReduceOp::kProduct) {
    if (is_turn(key, member, members, position)) return 2;
    return is_signed(key.type) && below(hash_of(key, rank, position), 2) == 1 ? -1 : 1;
  }
  return 1 + below(hash_of(key, rank, position), (int64_t{1} << exact_bits(key.type)) - 1);
}

int64_t reduced_code(ElementType type, ReduceOp op, const std::vector<int64_t>& addends,
                     int64_t members) {
  SHARDPROOF_ASSERT(!addends.empty(), "addends of a reduction");
  const bool is_bool = type == ElementType::kBool;
  const auto sum = [&] { return std::accumulate(addends.begin(), addends.end(), int64_t{0}); };
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? *std::max_element(addends.begin(), addends.end()) : sum();
    case ReduceOp::kAvg:
      return sum() / members;
    case ReduceOp::kMax:
      return *std::max_element(addends.begin(), addends.end());
    case ReduceOp::kMin:
      return *std::min_element(addends.begin(), addends.end());
    case ReduceOp::kProduct:
      return std::accumulate(addends.begin(), addends.end(), int64_t{1}, std::multiplies<>());
  }
  return 0;
}

}  // namespace shardproof::sim::validate
