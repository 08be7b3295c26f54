// The abilities of the processor at hand, for loops that are compiled more than once.
#pragma once

namespace shardproof {

// Whether the processor has AVX2 and FMA; false for other architectures.
inline bool has_avx2_and_fma() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return false;
#endif
}

}  // namespace shardproof
