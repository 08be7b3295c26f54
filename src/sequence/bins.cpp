#include "sequence/bins.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "mesh/layout.h"

namespace shardproof {
namespace {

void check_lengths(const std::vector<int64_t>& lengths) {
  if (lengths.empty()) throw_bad_input("an empty batch: no sequence to pack", "give at least one");
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 0) {
      throw_bad_input(fmt::format("sequence {} has a length of {}", i, lengths[i]),
                      "give 0 or more");
    }
  }
}

// Indices ordered by length; those of equal length keep their order.
std::vector<int64_t> by_length(const std::vector<int64_t>& lengths, bool longest_first) {
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](int64_t a, int64_t b) {
    const int64_t length_a = lengths[static_cast<size_t>(a)];
    const int64_t length_b = lengths[static_cast<size_t>(b)];
    return longest_first ? length_a > length_b : length_a < length_b;
  });
  return order;
}

void ascend(Bins& bins) {
  for (auto& bin : bins) std::ranges::sort(bin);
}

}  // namespace

void check_token_budget(const std::vector<int64_t>& lengths, int64_t token_budget) {
  if (token_budget < 1) {
    throw_bad_input(fmt::format("a budget of {} tokens", token_budget), "give 1 or more");
  }
  const auto longest = std::ranges::max_element(lengths);
  if (longest == lengths.end() || *longest <= token_budget) return;
  throw_bad_input(
      fmt::format("sequence {} takes {} tokens with its padding, the budget of a microbatch is {}",
                  longest - lengths.begin(), *longest, token_budget),
      fmt::format("raise the budget to {}, or cut the sequence", *longest));
}

Bins pack_first_fit_decreasing(const std::vector<int64_t>& lengths, int64_t token_budget) {
  check_lengths(lengths);
  check_token_budget(lengths, token_budget);
  Bins bins;
  std::vector<int64_t> room;
  for (const int64_t index : by_length(lengths, /*longest_first=*/true)) {
    const int64_t length = lengths[static_cast<size_t>(index)];
    size_t bin = 0;
    while (bin < bins.size() && room[bin] < length) ++bin;
    if (bin == bins.size()) {
      bins.emplace_back();
      room.push_back(token_budget);
    }
    bins[bin].push_back(index);
    room[bin] -= length;
  }
  ascend(bins);
  return bins;
}

Bins pack_balanced(const std::vector<int64_t>& lengths, int64_t num_bins) {
  check_lengths(lengths);
  if (num_bins < 1) throw_bad_input(fmt::format("{} bins", num_bins), "give 1 or more");
  Bins bins(static_cast<size_t>(num_bins));
  std::vector<int64_t> sums(bins.size(), 0);
  for (const int64_t index : by_length(lengths, /*longest_first=*/true)) {
    const auto lightest = static_cast<size_t>(std::ranges::min_element(sums) - sums.begin());
    bins[lightest].push_back(index);
    sums[lightest] += lengths[static_cast<size_t>(index)];
  }
  ascend(bins);
  return bins;
}

Bins pack_balanced_within(const std::vector<int64_t>& lengths, int64_t token_budget,
                          int64_t bin_multiple) {
  check_lengths(lengths);
  check_token_budget(lengths, token_budget);
  SHARDPROOF_ASSERT(bin_multiple >= 1, "a multiple of at least one bin");
  // As many bins as sequences always fit: each holds one.
  for (int64_t num_bins = bin_multiple;; num_bins += bin_multiple) {
    const Bins bins = pack_balanced(lengths, num_bins);
    const bool fit = std::ranges::all_of(bins, [&](const std::vector<int64_t>& bin) {
      int64_t sum = 0;
      for (const int64_t index : bin) sum += lengths[static_cast<size_t>(index)];
      return sum <= token_budget;
    });
    if (fit) return bins;
  }
}

Bins dynamic_batches(const std::vector<int64_t>& lengths, int64_t token_budget,
                     int64_t length_round) {
  check_lengths(lengths);
  if (length_round < 1) {
    throw_bad_input(fmt::format("sequence lengths rounded up to a multiple of {}", length_round),
                    "give 1 or more");
  }
  std::vector<int64_t> rounded;
  for (const int64_t length : lengths) rounded.push_back(round_up(length, length_round));
  check_token_budget(rounded, token_budget);
  Bins batches;
  for (const int64_t index : by_length(lengths, /*longest_first=*/false)) {
    const int64_t longest = rounded[static_cast<size_t>(index)];
    const bool fits = !batches.empty() &&
                      (static_cast<int64_t>(batches.back().size()) + 1) * longest <= token_budget;
    if (!fits) batches.emplace_back();
    batches.back().push_back(index);
  }
  return batches;
}

}  // namespace shardproof
