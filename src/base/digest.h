// A fast 64-bit digest of bytes: equal tensors on replicas have equal digests.
//
// It has four independent lanes of one wide product per 16 bytes, mixed at the end. It is not
// cryptographic: it detects faults, not attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/seed.h"

namespace shardproof {

// Folds the 128 bits of a product: each bit of one factor reaches most of the result.
inline uint64_t folded_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t word_at(const unsigned char* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}

inline uint64_t digest_of(const void* data, size_t bytes) {
  constexpr uint64_t kFirst = 0x9e3779b185ebca87, kSecond = 0xc2b2ae3d27d4eb4f;
  const auto* at = static_cast<const unsigned char*>(data);
  const auto with = [](uint64_t lane, const unsigned char* two) {
    return folded_product(word_at(two) ^ kFirst, word_at(two + 8) ^ lane ^ kSecond);
  };
  // Four variables, not an array, stay in registers even if the compiler does not unroll. None is
  // kSecond, or near it: then a word of 0 or -1 behind another would hide that one.
  uint64_t a = kFirst + kSecond, b = kFirst ^ (kSecond << 1), c = 1, d = ~kFirst;
  size_t rest = bytes;
  for (; rest >= 64; rest -= 64, at += 64) {
    a = with(a, at);
    b = with(b, at + 16);
    c = with(c, at + 32);
    d = with(d, at + 48);
  }
  uint64_t digest = mix_bits(bytes);
  for (const uint64_t lane : {a, b, c, d}) digest = mix_bits(digest * kFirst + lane);
  for (; rest >= 8; rest -= 8, at += 8) digest = mix_bits(digest * kFirst + word_at(at));
  for (; rest > 0; --rest, ++at) digest = mix_bits(digest * kFirst + *at + 1u);
  return digest;
}

}  // namespace shardproof
