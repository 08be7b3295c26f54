// The loops for processors with AVX-512. Compiled separately with -O3 (CMakeLists.txt).

#include <cmath>

#include "logprob/row_kernels.h"

#if defined(__x86_64__)
// This applies to the code below only; the headers above stay generic.
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma")
#define SHARDPROOF_FLOAT_LANES 16
#endif
#include "logprob/row_loops.h"

namespace shardproof {

RowKernels row_kernels_of_avx512() { return kKernelsHere; }

}  // namespace shardproof
