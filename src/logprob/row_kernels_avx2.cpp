// The loops for processors with AVX2 and FMA. Compiled separately with -O3 (CMakeLists.txt).

#include <cmath>

#include "logprob/row_kernels.h"

#if defined(__x86_64__)
// This applies to the code below only; the headers above stay generic.
#pragma GCC target("avx2,fma")
#endif
#include "logprob/row_loops.h"

namespace shardproof {

RowKernels row_kernels_of_avx2() { return kKernelsHere; }

}  // namespace shardproof
