// A fast 64-bit digest of bytes: equal tensors on replicas have equal digests.
//
// Four independent lanes of one wide product per 16 bytes, mixed at the end. Not cryptographic: it
// guards against faults, not against people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/seed.h"

namespace shardproof {

// The 128 bits of a product, folded: each bit of the one factor reaches most of the result.
inline uint64_t folded_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t digest_of(const void* data, size_t bytes) {
  constexpr uint64_t kFirst = 0x9e3779b185ebca87, kSecond = 0xc2b2ae3d27d4eb4f;
  const auto* at = static_cast<const unsigned char*>(data);
  uint64_t lanes[4] = {kFirst + kSecond, kSecond, 1, ~kFirst};
  size_t rest = bytes;
  for (; rest >= 64; rest -= 64, at += 64) {
    uint64_t words[8];
    std::memcpy(words, at, 64);
    for (int i = 0; i < 4; ++i) {
      lanes[i] = folded_product(words[2 * i] ^ kFirst, words[2 * i + 1] ^ lanes[i] ^ kSecond);
    }
  }
  uint64_t digest = mix_bits(bytes);
  for (const uint64_t lane : lanes) digest = mix_bits(digest * kFirst + lane);
  for (; rest >= 8; rest -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    digest = mix_bits(digest * kFirst + word);
  }
  for (; rest > 0; --rest, ++at) digest = mix_bits(digest * kFirst + *at + 1u);
  return digest;
}

}  // namespace shardproof
