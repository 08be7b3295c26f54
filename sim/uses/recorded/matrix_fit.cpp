#include "sim/uses/recorded/matrix_fit.h"

#include <cmath>

namespace shardproof::sim::recorded {

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double length_of(const Values& a) { return std::sqrt(dot(a, a)); }

double distance_of(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

Fit fit_of(const Values& moved, const Values& direction, const Values& before) {
  const double dd = dot(direction, direction), db = dot(direction, before),
               bb = dot(before, before);
  const double md = dot(moved, direction), mb = dot(moved, before);
  const double area = dd * bb - db * db;
  Fit fit;
  if (!(dd > 0)) return fit;
  const bool decays = area > 1e-9 * dd * bb;
  fit.factor = decays ? (md * bb - mb * db) / area : md / dd;
  const double decay = decays ? (mb * dd - md * db) / area : 0;
  double left = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    const double apart = moved[i] - fit.factor * direction[i] - decay * before[i];
    left += apart * apart;
  }
  const double size = std::fabs(fit.factor) * std::sqrt(dd);
  if (size > 0) fit.unlike = std::sqrt(left) / size;
  return fit;
}

}  // namespace shardproof::sim::recorded
