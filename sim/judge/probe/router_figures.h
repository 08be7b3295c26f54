// What the tokens of a rank chose, for the page of a run: how many rows each expert gets from it,
// and by how much the golden chose.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "observe/probe.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/index_plan.h"

namespace shardproof::sim::judge {

class RouterFigures {
 public:
  // `golden` must outlive this object.
  explicit RouterFigures(const GoldenRecord& golden) : golden_(golden) {}
  // Of a selection of experts in a forward; the last step counts.
  void see(const Observation& observation, const TensorView& local, const GoldenTensor& golden,
           const IndexPlan& plan);
  // Of "metric.dropped_routes".
  void see_dropped(int64_t routes) { dropped_.push_back(routes); }
  // Null when the rank has seen no selection:
  //   {"layers": {"model.layers.0.mlp.gate": {"rows": [3, 0, 5], "margins": [0.01, .., 0.4]}},
  //    "dropped": [0, 2]}
  // with a number for each expert; the least margin, the quartiles and the greatest one of the
  // rank's tokens, none when it has no token or routes were replayed; and the dropped routes of
  // each step.
  nlohmann::json take() const;

 private:
  struct OfLayer {
    int64_t step = 0;
    std::vector<int64_t> rows = {};
    std::vector<double> margins = {};
  };
  const GoldenRecord& golden_;
  std::map<std::string, OfLayer> layers_;
  std::vector<int64_t> dropped_;
};

}  // namespace shardproof::sim::judge
