// One seed replays everything: every drawn quantity has its own stream from the seed and its name.
#pragma once

#include <cstdint>
#include <string_view>

namespace shardproof {

// The finalizer of splitmix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators").
constexpr uint64_t mix_bits(uint64_t bits) {
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
  return bits ^ (bits >> 31);
}

// The seed of the stream `name`: FNV-1a of the name, mixed with the seed.
constexpr uint64_t stream_seed(int64_t seed, std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : name) {
    hash = (hash ^ static_cast<uint8_t>(letter)) * 0x100000001b3ULL;
  }
  return mix_bits(hash ^ mix_bits(static_cast<uint64_t>(seed) + 0x9e3779b97f4a7c15ULL));
}

// LibTorch's CPU generator, an mt19937, takes the low 32 bits of its seed: two seeds that differ in
// higher bits only draw the same numbers.
inline constexpr uint64_t kMaxGeneratorSeed = 0xffffffff;

// The seed of a generator for the stream `name`: the bits of stream_seed that a generator takes.
constexpr uint64_t generator_seed(int64_t seed, std::string_view name) {
  return stream_seed(seed, name) & kMaxGeneratorSeed;
}

static_assert(stream_seed(1, "a") != stream_seed(2, "a"));
static_assert(stream_seed(1, "a") != stream_seed(1, "b"));

}  // namespace shardproof
