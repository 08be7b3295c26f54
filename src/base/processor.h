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

// Whether it has the parts F, BW, DQ and VL of AVX-512, as servers since Skylake have.
inline bool has_avx512() {
#if defined(__x86_64__)
  return has_avx2_and_fma() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

}  // namespace shardproof
