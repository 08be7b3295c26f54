// The sweep of a scenario: the settings that each of its rows changes.
//
//   matrix:
//     parallel.tensor_parallel_size: [1, 2, 4]        a key and its values
//     mesh:                                           or a label of your own and coupled values
//       - {name: dp2, parallel.data_parallel_size: 2}
//       - {name: tp2sp, parallel.tensor_parallel_size: 2, parallel.sequence_parallel: true}
//
// Rows are the product of all lists; the last list varies fastest: [tp=1,dp2], [tp=1,tp2sp], ..
#pragma once

#include <string>
#include <vector>

#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

struct MatrixRow {
  std::string label;  // "tp=2,precision=float64"; "" without a matrix
  Settings settings;  // that the row changes
  std::string skip;   // the row's own reason; "" none
};

constexpr int64_t kMaxCases = 10000;  // of one scenario

// Without a `matrix`, returns one row that changes nothing.
std::vector<MatrixRow> expand_matrix(const Schema& schema, const std::string& file,
                                     const YamlNode* matrix);

}  // namespace shardproof::sim
