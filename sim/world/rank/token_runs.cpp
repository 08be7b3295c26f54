#include "sim/world/rank/token_runs.h"

#include <ATen/ATen.h>

namespace shardproof::sim::world {
namespace {

// [sample, first, count] of each run of each row.
nlohmann::json runs_json(const at::Tensor& token_map, int64_t seq_len) {
  auto rows = nlohmann::json::array();
  for (const std::vector<TokenRun>& row : token_runs(token_map, seq_len)) {
    auto runs = nlohmann::json::array();
    for (const TokenRun& run : row) runs.push_back({run.sample, run.first, run.count});
    rows.push_back(std::move(runs));
  }
  return rows;
}

}  // namespace

std::vector<std::vector<TokenRun>> token_runs(const at::Tensor& token_map, int64_t seq_len) {
  const at::Tensor map = token_map.to(at::kCPU, at::kLong).contiguous();
  const int64_t row_length = map.size(1);
  const int64_t* entries = map.const_data_ptr<int64_t>();
  std::vector<std::vector<TokenRun>> rows(static_cast<size_t>(map.size(0)));
  for (std::vector<TokenRun>& runs : rows) {
    for (int64_t i = 0; i < row_length; ++i) {
      const int64_t entry = *entries++;
      const TokenRun one =
          entry < 0 ? TokenRun{-1, 0, 1} : TokenRun{entry / seq_len, entry % seq_len, 1};
      const bool joins = !runs.empty() && runs.back().sample == one.sample &&
                         (entry < 0 || runs.back().first + runs.back().count == one.first);
      if (joins) {
        ++runs.back().count;
      } else {
        runs.push_back(one);
      }
    }
  }
  return rows;
}

nlohmann::json held_json(const std::vector<HeldTokens>& held, int64_t seq_len, bool with_whole_rows,
                         int64_t most_positions) {
  auto microbatches = nlohmann::json::array();
  for (const HeldTokens& micro : held) {
    if (micro.rows.numel() > most_positions) return nullptr;
    nlohmann::json one = {{"held", runs_json(micro.held, seq_len)}};
    if (with_whole_rows) one["rows"] = runs_json(micro.rows, seq_len);
    microbatches.push_back(std::move(one));
  }
  return microbatches;
}

}  // namespace shardproof::sim::world
