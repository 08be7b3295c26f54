#include "mesh/training_axes.h"

namespace shardproof {

int64_t AxisSizes::ranks() const {
  int64_t product = 1;
  for (const TrainingAxis& axis : kTrainingAxes) product *= this->*axis.size;
  return product;
}

int64_t AxisSizes::ranks(Share share) const {
  int64_t product = 1;
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (axis.share == share) product *= this->*axis.size;
  }
  return product;
}

std::vector<std::string> axis_names() {
  std::vector<std::string> names;
  for (const TrainingAxis& axis : kTrainingAxes) names.emplace_back(axis.name);
  return names;
}

std::vector<std::string> expert_names() { return {"edp", "ep", "etp", "ep,etp"}; }

AxisSizes same_sizes(int64_t size) {
  AxisSizes sizes;
  for (const TrainingAxis& axis : kTrainingAxes) sizes.*axis.size = size;
  return sizes;
}

}  // namespace shardproof
