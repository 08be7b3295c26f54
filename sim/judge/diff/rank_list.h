// A list of ranks that many rows share: each of 1,000 replicas has some hundred rows that name all.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace shardproof::sim::judge {

// Cannot be changed; a copy shares its ranks.
class RankList {
 public:
  RankList() : RankList(std::vector<int64_t>()) {}
  RankList(std::vector<int64_t> ranks)  // NOLINT(google-explicit-constructor): it is such a list
      : ranks_(std::make_shared<const std::vector<int64_t>>(std::move(ranks))) {}

  const std::vector<int64_t>& ranks() const { return *ranks_; }
  size_t size() const { return ranks_->size(); }
  auto begin() const { return ranks_->begin(); }
  auto end() const { return ranks_->end(); }
  bool contains(int64_t rank) const { return std::find(begin(), end(), rank) != end(); }

  friend bool operator==(const RankList& a, const RankList& b) {
    return a.ranks_ == b.ranks_ || *a.ranks_ == *b.ranks_;
  }
  friend bool operator<(const RankList& a, const RankList& b) {
    return a.ranks_ != b.ranks_ && *a.ranks_ < *b.ranks_;
  }

 private:
  std::shared_ptr<const std::vector<int64_t>> ranks_;
};

}  // namespace shardproof::sim::judge
