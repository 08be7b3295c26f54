// The loops for processors with AVX2 and FMA. Compiled by itself with -O3 (CMakeLists.txt).
#include <cstdint>
#include <cstring>

#include "parallel/tp/norm_rows.h"

#if defined(__x86_64__)
// From here on; what is included above stays as it is for every processor.
#pragma GCC target("avx2,fma")
#endif
#include "parallel/tp/norm_row_loops.h"

namespace shardproof {

NormRows norm_rows_of_avx2() { return kNormRowsHere; }

}  // namespace shardproof
