#include "sim/judge/probe/router_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim::judge {
namespace {

constexpr std::string_view kIds = ".ids.output";
constexpr size_t kQuarters = 4;

// Three digits, since the page shows no more.
double short_number(double value) { return std::stod(fmt::format("{:.3g}", value)); }

}  // namespace

void RouterFigures::see(const Observation& observation, const TensorView& local,
                        const GoldenTensor& golden, const IndexPlan& plan) {
  if (observation.phase != Phase::kForward || !is_route_ids(observation.name)) return;
  const std::string gate = observation.name.substr(0, observation.name.size() - kIds.size());
  OfLayer& layer = layers_[gate];
  if (layer.step != observation.step) layer = {.step = observation.step};
  if (const auto* logits = golden_.find(Phase::kForward, observation.step, gate + ".output")) {
    layer.rows.resize(static_cast<size_t>(logits->value.sizes().back()));
  }
  const auto* margins = golden_.find(Phase::kRecompute, observation.step, gate + ".ids.margin");
  if (margins != nullptr && margins->rows != golden.rows) margins = nullptr;
  const int64_t chosen = golden.value.sizes().back();
  std::vector<double> ids, right;
  copy_both({local, golden, plan}, ids, right);
  plan.for_each_run([&](int64_t first, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const double id = ids[static_cast<size_t>(first + i)];
      if (!(id >= 0)) continue;
      const auto expert = static_cast<size_t>(id);
      if (expert >= layer.rows.size()) layer.rows.resize(expert + 1);
      ++layer.rows[expert];
      if (margins == nullptr || (offset + i) % chosen != 0) continue;
      const double margin = margins->value.data<double>()[(offset + i) / chosen];
      if (std::isfinite(margin)) layer.margins.push_back(margin);  // infinite: it chose all experts
    }
  });
}

nlohmann::json RouterFigures::take() const {
  if (layers_.empty()) return nullptr;
  nlohmann::json figures = {{"layers", nlohmann::json::object()}, {"dropped", dropped_}};
  for (const auto& [gate, layer] : layers_) {
    std::vector<double> sorted = layer.margins, quartiles;
    std::sort(sorted.begin(), sorted.end());
    for (size_t i = 0; !sorted.empty() && i <= kQuarters; ++i) {
      quartiles.push_back(short_number(sorted[i * (sorted.size() - 1) / kQuarters]));
    }
    figures["layers"][gate] = {{"rows", layer.rows}, {"margins", quartiles}};
  }
  return figures;
}

}  // namespace shardproof::sim::judge
