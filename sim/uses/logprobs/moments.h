// Means, variances and the covariance of two series of numbers.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace shardproof::sim::logprobs {

struct Moments {
  double mean_x = 0, mean_y = 0, variance_x = 0, variance_y = 0, covariance = 0;

  // 0 where one of both does not vary.
  double correlation() const {
    const double product = variance_x * variance_y;
    return product > 0 ? covariance / std::sqrt(product) : 0;
  }
};

// Of as many numbers of each.
inline Moments moments_of(const std::vector<double>& x, const std::vector<double>& y) {
  Moments moments;
  if (x.empty()) return moments;
  const auto n = static_cast<double>(x.size());
  double &mean_x = moments.mean_x, &mean_y = moments.mean_y;
  for (size_t i = 0; i < x.size(); ++i) {
    mean_x += x[i] / n;
    mean_y += y[i] / n;
  }
  for (size_t i = 0; i < x.size(); ++i) {
    moments.variance_x += (x[i] - mean_x) * (x[i] - mean_x) / n;
    moments.variance_y += (y[i] - mean_y) * (y[i] - mean_y) / n;
    moments.covariance += (x[i] - mean_x) * (y[i] - mean_y) / n;
  }
  return moments;
}

}  // namespace shardproof::sim::logprobs
