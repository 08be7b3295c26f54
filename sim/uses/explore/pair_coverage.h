// Which kinds of values, and which pairs of them, have been run.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "sim/uses/explore/catalog.h"

namespace shardproof::sim::explore {

using KindPair = std::pair<size_t, size_t>;  // the smaller first

class PairCoverage {
 public:
  explicit PairCoverage(const Catalog& catalog);

  // Returns the number of pairs that are new.
  int64_t add(const std::vector<size_t>& kinds);
  int64_t count_new(const std::vector<size_t>& kinds) const;
  bool has_run(const KindPair& pair) const { return state_[place(pair)] == State::kRun; }
  // The checks before a run refuse every case that was drawn for it.
  void give_up(const KindPair& pair);
  // Any two kinds of values, whether or not a case can have both.
  KindPair any_pair(std::mt19937_64& random) const;
  // A pair that has not been run or given up; the second is false when there is none left.
  std::pair<KindPair, bool> missing_pair(std::mt19937_64& random) const;

  int64_t pairs_run() const { return pairs_run_; }
  int64_t pairs_given_up() const { return given_up_; }
  int64_t cases_with(size_t kind) const { return cases_[kind]; }

 private:
  enum class State : uint8_t { kMissing, kRun, kGivenUp };
  bool can_be_pair(const KindPair& pair) const;
  size_t place(const KindPair& pair) const { return pair.first * cases_.size() + pair.second; }
  bool is_missing(const KindPair& pair) const;

  const Catalog* catalog_;
  std::vector<int64_t> cases_, given_up_of_;  // by kind of value
  std::vector<State> state_;
  int64_t pairs_run_ = 0, given_up_ = 0;
};

}  // namespace shardproof::sim::explore
