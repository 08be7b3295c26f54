// What the processor at hand can do, for loops that are compiled more than once.
#pragma once

namespace shardproof {

// AVX2, and FMA with it. False on processors of another kind.
bool has_avx2_and_fma();

}  // namespace shardproof
