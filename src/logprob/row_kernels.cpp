// Selects the kernels for this processor. Compiled separately with -O3 (CMakeLists.txt).
#include "logprob/row_kernels.h"

#include "base/processor.h"
#include "logprob/row_loops.h"

namespace shardproof {

RowKernels row_kernels_of_any_processor() { return kKernelsHere; }

RowKernels row_kernels() {
  if (has_avx512()) return row_kernels_of_avx512();
  return has_avx2_and_fma() ? row_kernels_of_avx2() : row_kernels_of_any_processor();
}

}  // namespace shardproof
