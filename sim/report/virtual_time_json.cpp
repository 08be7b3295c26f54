#include "sim/report/virtual_time_json.h"

#include <algorithm>

#include "sim/report/escape.h"
#include "sim/report/virtual_time.h"

namespace shardproof::sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostSteps = 40;
constexpr size_t kMostShares = 12;

// The shortest duration among the kMostSteps longest steps.
double shortest_listed(const std::vector<PathStep>& path) {
  if (path.size() <= kMostSteps) return 0;
  std::vector<double> durations;
  for (const PathStep& step : path) durations.push_back(step.duration_us);
  std::nth_element(durations.begin(), durations.begin() + kMostSteps - 1, durations.end(),
                   std::greater<>());
  return durations[kMostSteps - 1];
}

Json path_json(const std::vector<PathStep>& path) {
  auto out = Json::array();
  const double shortest = shortest_listed(path);
  for (const PathStep& step : path) {
    if (step.duration_us < shortest || out.size() == kMostSteps) continue;
    out.push_back({{"rank", step.rank},
                   {"what", step.name},
                   {"start_us", json_number(step.start_us)},
                   {"duration_us", json_number(step.duration_us)}});
  }
  return out;
}

}  // namespace

nlohmann::ordered_json virtual_time_json(const CaseResult& result) {
  const auto time = virtual_time(result);
  if (!time) return nullptr;
  auto ranks = Json::array();
  for (const RankTime& rank : time->ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"total_us", json_number(rank.total_us)},
                     {"compute_us", json_number(rank.compute_us)},
                     {"waiting_us", json_number(rank.waiting_us)},
                     {"exposed_us", json_number(rank.exposed_us)},
                     {"communication_us", json_number(rank.communication_us)}});
  }
  const Json path = path_json(time->path);
  auto shares = Json::array();
  for (const PathShare& share : path_shares(*time)) {
    if (shares.size() == kMostShares) break;
    shares.push_back({{"what", share.what}, {"duration_us", json_number(share.duration_us)}});
  }
  const size_t left_out = time->path.size() - path.size();
  return {{"total_us", json_number(time->total_us)},
          {"ranks", ranks},
          {"critical_path", path},
          {"critical_path_left_out", left_out},
          {"critical_path_shares", shares}};
}

}  // namespace shardproof::sim
