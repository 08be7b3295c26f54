// A fast 64-bit digest of bytes: equal tensors on replicas have equal digests.
//
// Four independent lanes of multiply and rotate over 32-byte blocks, mixed at the end. Not
// cryptographic: it guards against faults, not against people.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shardproof::sim {

// The finaliser of splitmix64: every input bit reaches every output bit.
constexpr uint64_t mix64(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

inline uint64_t digest_of(const void* data, size_t bytes) {
  constexpr uint64_t kFirst = 0x9e3779b185ebca87, kSecond = 0xc2b2ae3d27d4eb4f;
  const auto* at = static_cast<const unsigned char*>(data);
  const auto step = [&](uint64_t lane, uint64_t word) {
    lane += word * kSecond;
    lane = (lane << 31) | (lane >> 33);
    return lane * kFirst;
  };
  uint64_t lanes[4] = {kFirst + kSecond, kSecond, 0, ~kFirst};
  size_t rest = bytes;
  for (; rest >= 32; rest -= 32, at += 32) {
    uint64_t words[4];
    std::memcpy(words, at, 32);
    for (int i = 0; i < 4; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  uint64_t digest = mix64(bytes);
  for (const uint64_t lane : lanes) digest = step(digest, lane);
  for (; rest > 0; --rest, ++at) digest = step(digest, *at + 1u);
  return mix64(digest);
}

}  // namespace shardproof::sim
