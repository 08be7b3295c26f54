// A quantile of unsorted values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace shardproof {

// The value below which `share` of the others lie, always one of the values: the lower one of two
// medians. 0 without values.
inline double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto place =
      values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}
inline double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

}  // namespace shardproof
