// Which instructions there are. Compiled by itself with -O3 (CMakeLists.txt).
#include "logprob/row_kernels.h"

#include "logprob/row_loops.h"

namespace shardproof {

RowKernels row_kernels_of_any_processor() { return kKernelsHere; }

RowKernels row_kernels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return row_kernels_of_avx2();
#endif
  return row_kernels_of_any_processor();
}

}  // namespace shardproof
