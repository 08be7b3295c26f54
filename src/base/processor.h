// The abilities of the processor at hand, for loops that are compiled more than once.
#pragma once

namespace shardproof {

// Whether the processor has AVX2 and FMA; false for other architectures.
bool has_avx2_and_fma();

}  // namespace shardproof
