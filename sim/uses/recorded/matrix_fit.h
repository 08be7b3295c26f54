// How far an update is from a direction, whatever its length and the decay of weights.
#pragma once

#include <vector>

namespace shardproof::sim::recorded {

using Values = std::vector<double>;

double dot(const Values& a, const Values& b);
double length_of(const Values& a);
double distance_of(const Values& a, const Values& b);

// moved = factor * direction + decay * before, as near as can be.
struct Fit {
  double factor = 0;
  double unlike = 1;  // what that leaves, relative to factor * direction
};

Fit fit_of(const Values& moved, const Values& direction, const Values& before);

}  // namespace shardproof::sim::recorded
