// The loops for processors with AVX2 and FMA. Compiled separately with -O3 (CMakeLists.txt).

#include "parallel/tp/norm_rows.h"

#if defined(__x86_64__)
// The headers above are compiled for every processor, the loops below for these.
#pragma GCC target("avx2,fma")
#endif
#include "parallel/tp/norm_row_loops.h"

namespace shardproof {

NormRows norm_rows_of_avx2() { return kNormRowsHere; }

}  // namespace shardproof
