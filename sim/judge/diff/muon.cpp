#include "sim/judge/diff/muon.h"

#include <algorithm>
#include <cmath>

namespace shardproof::sim::judge {

double MuonMatrices::scale() const {
  return std::sqrt(std::max(1.0, static_cast<double>(rows) / static_cast<double>(columns)));
}

bool has_muon(const OptimizerSpec& optimizer, const std::string& parameter,
              const std::vector<int64_t>& shape) {
  return optimizer.kind == OptimizerKind::kMuon && parameter.starts_with("model.layers.") &&
         shape.size() >= 2;
}

MuonMatrices muon_matrices(const std::string& parameter, const std::vector<int64_t>& shape) {
  const int64_t joined = parameter.ends_with("gate_up_proj") ? 2 : 1;
  return {.rows = shape[shape.size() - 2] / joined, .columns = shape.back(), .joined = joined};
}

}  // namespace shardproof::sim::judge
