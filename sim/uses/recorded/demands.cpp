// What a rank must have recorded by what it, or a rank with the same parameters, has recorded.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "sim/uses/recorded/piece_judge.h"

namespace shardproof::sim::recorded {
namespace {

class Demands {
 public:
  Demands(const RecordedRun& run, const GoldenRecord& golden,
          std::vector<judge::RankReport>& reports)
      : run_(run), golden_(golden), reports_(reports) {}

  // A rank that has a part of a parameter at the start has it after each step too.
  void demand_parameters_after_each_step() {
    using Parts = std::set<std::pair<Place, std::vector<int64_t>>>;
    std::map<std::tuple<int64_t, std::string, int64_t>, Parts> parts;  // by rank, name, step
    for (const RecordedPiece& piece : run_.pieces) {
      if (piece.kind != ObservationKind::kParameter) continue;
      parts[{piece.rank, piece.name, piece.step}].insert({piece.place, piece.shape});
    }
    for (const auto& [key, at_start] : parts) {
      const auto& [rank, name, start] = key;
      if (start != 0) continue;
      for (int64_t step = 1; step <= run_.steps; ++step) {
        const GoldenTensor* golden = golden_.find(Phase::kStep, step, name);
        const auto now = parts.find({rank, name, step});
        if (!golden || (now != parts.end() && now->second == at_start)) continue;
        add_absent(
            *golden, rank,
            fmt::format("rank {} recorded other parts of it than at the start, or none", rank));
      }
    }
  }

  // A rank with the parameters of another one has its buffers too. Stages of a pipeline have
  // others.
  void demand_buffers() {
    std::map<int64_t, std::set<std::string>> parameters;
    std::map<std::pair<int64_t, std::string>, std::set<int64_t>> holders;  // by step and buffer
    for (const RecordedPiece& piece : run_.pieces) {
      if (piece.kind == ObservationKind::kParameter) parameters[piece.rank].insert(piece.name);
      if (piece.kind == ObservationKind::kBuffer)
        holders[{piece.step, piece.name}].insert(piece.rank);
    }
    for (const auto& [key, ranks] : holders) {
      const auto& [step, name] = key;
      const GoldenTensor* golden = golden_.find(Phase::kStep, step, name);
      for (int64_t rank = 0; golden && rank < run_.world_size; ++rank) {
        const auto peer = std::find_if(ranks.begin(), ranks.end(), [&](int64_t holder) {
          return hold_the_same(parameters[holder], parameters[rank]);
        });
        if (ranks.contains(rank) || peer == ranks.end()) continue;
        add_absent(*golden, rank,
                   fmt::format("rank {} recorded none of it, and rank {}, which has the same "
                               "parameters, did",
                               rank, *peer));
      }
    }
  }

  // Of small parameters that are cut, some ranks have nothing.
  static bool hold_the_same(const std::set<std::string>& a, const std::set<std::string>& b) {
    const auto shared =
        std::count_if(a.begin(), a.end(), [&](const std::string& one) { return b.contains(one); });
    return 2 * shared > std::ssize(a) && 2 * shared > std::ssize(b);
  }

  void add_absent(const GoldenTensor& golden, int64_t rank, std::string problem) {
    judge::ResultRow row(judge::Outcome::kMismatch);
    row.kind = golden.kind;
    row.name = golden.name;
    row.phase = Phase::kStep;
    row.step = golden.step;
    row.rank = rank;
    row.order = golden.order;
    row.replicas = std::vector<int64_t>{rank};
    row.global_shape = golden.value.sizes();
    row.problem = std::move(problem);
    reports_[static_cast<size_t>(rank)].rows.push_back(std::move(row));
  }

 private:
  const RecordedRun& run_;
  const GoldenRecord& golden_;
  std::vector<judge::RankReport>& reports_;
};

}  // namespace

void add_absent_pieces(const RecordedRun& run, const GoldenRecord& golden,
                       std::vector<judge::RankReport>& reports) {
  Demands demands(run, golden, reports);
  demands.demand_parameters_after_each_step();
  demands.demand_buffers();
}

}  // namespace shardproof::sim::recorded
