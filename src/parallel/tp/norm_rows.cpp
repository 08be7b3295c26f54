// Which instructions there are. Compiled by itself with -O3 (CMakeLists.txt).
#include "parallel/tp/norm_rows.h"

#include "parallel/tp/norm_row_loops.h"

namespace shardproof {

NormRows norm_rows_of_any_processor() { return kNormRowsHere; }

NormRows norm_rows() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return norm_rows_of_avx2();
#endif
  return norm_rows_of_any_processor();
}

}  // namespace shardproof
