#include "sim/uses/explore/pair_coverage.h"

#include <algorithm>

namespace shardproof::sim::explore {

namespace {

// A kind of value that no case had is hopeless after so many of its pairs were given up.
constexpr int64_t kHopeless = 30;

}  // namespace

PairCoverage::PairCoverage(const Catalog& catalog)
    : catalog_(&catalog),
      cases_(catalog.kinds().size()),
      given_up_of_(catalog.kinds().size()),
      state_(catalog.kinds().size() * catalog.kinds().size()) {}

int64_t PairCoverage::add(const std::vector<size_t>& kinds) {
  int64_t added = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    ++cases_[kinds[i]];
    for (size_t k = i + 1; k < kinds.size(); ++k) {
      State& state = state_[place({kinds[i], kinds[k]})];
      given_up_ -= state == State::kGivenUp;
      added += state != State::kRun;
      state = State::kRun;
    }
  }
  pairs_run_ += added;
  return added;
}

int64_t PairCoverage::count_new(const std::vector<size_t>& kinds) const {
  int64_t count = 0;
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (size_t k = i + 1; k < kinds.size(); ++k) count += !has_run({kinds[i], kinds[k]});
  }
  return count;
}

void PairCoverage::give_up(const KindPair& pair) {
  State& state = state_[place(pair)];
  if (state != State::kMissing) return;
  state = State::kGivenUp;
  ++given_up_;
  ++given_up_of_[pair.first];
  ++given_up_of_[pair.second];
}

KindPair PairCoverage::any_pair(std::mt19937_64& random) const {
  for (;;) {
    const size_t a = random() % cases_.size(), b = random() % cases_.size();
    const KindPair pair = std::minmax(a, b);
    if (can_be_pair(pair)) return pair;
  }
}

// Two values of one option, or options of two workloads, are none.
bool PairCoverage::can_be_pair(const KindPair& pair) const {
  const auto &first = catalog_->kinds()[pair.first], &second = catalog_->kinds()[pair.second];
  const std::string& one = catalog_->options()[first.option].workload;
  const std::string& other = catalog_->options()[second.option].workload;
  return first.option != second.option && (one.empty() || other.empty() || one == other);
}

bool PairCoverage::is_missing(const KindPair& pair) const {
  const auto hopeless = [this](size_t kind) {
    return cases_[kind] == 0 && given_up_of_[kind] >= kHopeless;
  };
  return state_[place(pair)] == State::kMissing && !hopeless(pair.first) &&
         !hopeless(pair.second) && can_be_pair(pair);
}

std::pair<KindPair, bool> PairCoverage::missing_pair(std::mt19937_64& random) const {
  // From a drawn place on: with few pairs left, drawing alone would miss them.
  const size_t count = cases_.size(), begin = random() % (count * count);
  for (size_t i = 0; i < count * count; ++i) {
    const size_t at = (begin + i) % (count * count);
    const KindPair pair = {at / count, at % count};
    if (pair.first < pair.second && is_missing(pair)) return {pair, true};
  }
  return {{}, false};
}

}  // namespace shardproof::sim::explore
