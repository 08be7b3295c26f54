// Draws cases over every option, runs them in rounds, and keeps those that reached a new pair of
// values.
//
//   <folder>/corpus/<seed>-<n>.yaml   the cases that are kept, and those that were not as expected
//   <folder>/rounds/<k>               what runs a round keeps of it
//   <folder>/coverage.json            which values and pairs of values have run
#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/explore/draw.h"

namespace shardproof::sim::explore {

struct FuzzSettings {
  int64_t count = 200;   // cases
  double minutes = 0;    // goes on for so long, instead of `count`; 0: does not
  int64_t seed = 0;      // of the draws
  int64_t max_fail = 0;  // ends after so many that were not as expected; 0: does not
  std::vector<Backend> backends = {Backend::kEmulated};  // each case on each
};

class Fuzz {
 public:
  struct Round {
    std::vector<CaseSpec> cases;
    std::string folder;
    std::optional<double> budget_s = {};
  };
  // Runs and judges the cases; where time or the user ended the round, the first of them.
  using RunRound = std::function<std::vector<judge::CaseResult>(Round)>;

  // Keeps `catalog`.
  Fuzz(const FuzzSettings& settings, const Catalog& catalog, WorldChoice world, RunRound run_round,
       std::function<bool()> interrupted);

  // The pairs of the cases in a folder have run.
  void read_corpus(const std::string& folder);
  // Draws and runs, with its files in `folder`. Throws Error(kBadInput): they cannot be written.
  void run(const std::string& folder);
  // After run: what it found; `coverage` adds the numbers of coverage.json.
  std::string text(bool coverage) const;
  // After run: whether the ranks took a case at all.
  bool ran_any() const { return run_count_ > 0; }
  // After run: those that were not as expected, as far as judge::exit_status reads them.
  const std::vector<judge::CaseResult>& unexpected() const { return status_of_; }

 private:
  struct DrawnCase {
    CaseSettings settings;
    std::filesystem::path file;
    bool kept = false;
  };

  double seconds_left() const;
  // Of the cases of this seed in the folder's corpus.
  int64_t last_number() const;
  bool is_over() const;
  void one_round();
  void draw(PairCoverage& expected, std::vector<CaseSpec>& cases,
            std::map<std::string, DrawnCase>& drawn);
  void take(const judge::CaseResult& result, DrawnCase& drawn);
  void sample_pairs();
  std::vector<std::string> missing_values() const;
  // "parallel.tensor_parallel_size=64": one of several values of `--set` and
  // the like, of which no case ran.
  std::vector<std::string> missing_choices() const;
  nlohmann::json coverage_json() const;
  std::string coverage_text() const;

  FuzzSettings settings_;
  const Catalog& catalog_;
  WorldChoice world_;
  RunRound run_round_;
  std::function<bool()> interrupted_;
  PairCoverage coverage_;
  Drawer drawer_;
  std::mt19937_64 random_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  std::filesystem::path folder_;
  bool has_corpus_ = false;
  int64_t kept_ = 0;  // the last number of a case of the corpus that was read, which stays
  int64_t drawn_ = 0, rounds_ = 0, run_count_ = 0, refused_ = 0, undecided_ = 0;
  int64_t sampled_ = 0, sampled_valid_ = 0, sampled_run_ = 0;
  std::set<std::pair<std::string, nlohmann::json>> chosen_;  // restricted options of cases that ran
  std::map<std::string, std::string> refusals_;  // a sentence, and the first case with it
  std::vector<std::string> lacking_;
  std::vector<nlohmann::json> unexpected_;
  std::vector<judge::CaseResult> status_of_;  // of unexpected cases: what exit_status reads
};

}  // namespace shardproof::sim::explore
