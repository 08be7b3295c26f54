// Chooses the instruction set. Compiled separately with -O3 (CMakeLists.txt).
#include "parallel/tp/norm_rows.h"

#include "base/processor.h"
#include "parallel/tp/norm_row_loops.h"

namespace shardproof {

NormRows norm_rows_of_any_processor() { return kNormRowsHere; }

NormRows norm_rows() {
  return has_avx2_and_fma() ? norm_rows_of_avx2() : norm_rows_of_any_processor();
}

}  // namespace shardproof
