#include "train/batching.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "mesh/layout.h"
#include "parallel/data/replicate.h"
#include "sequence/bins.h"
#include "sequence/packing.h"
#include "tensor/int64_list.h"

namespace shardproof {
namespace {

std::vector<int64_t> lengths_of(const Batch& batch) { return int64_list(batch.input_lengths); }

// The share of each sequence in a budget.
std::vector<int64_t> taken(const std::vector<int64_t>& lengths, int64_t multiple) {
  std::vector<int64_t> out;
  for (const int64_t length : lengths) out.push_back(round_up(length, multiple));
  return out;
}

// Applies `work` to the lengths of a rank's share and converts its indices to those of the batch.
template <class Work>
Bins bins_of_share(const std::vector<int64_t>& lengths, const SampleRange& share,
                   const Work& work) {
  if (share.count == 0) return {};
  const auto begin = lengths.begin() + share.first;
  Bins bins = work(std::vector<int64_t>(begin, begin + share.count));
  for (auto& bin : bins) {
    for (int64_t& index : bin) index += share.first;
  }
  return bins;
}

// One rank's bins; an empty bin is a dummy.
Bins packed_bins(const std::vector<int64_t>& lengths, int64_t dp_size, int64_t dp_rank,
                 const BatchingOptions& options, const SequencePadding& padding) {
  const std::vector<int64_t> places = taken(lengths, padding.sequence_multiple);
  // A full row must still be divisible, so the budget is rounded down to a multiple.
  const int64_t budget = options.token_budget / padding.row_multiple * padding.row_multiple;
  if (options.algorithm == PackAlgorithm::kBalanced) {
    const Bins bins = options.token_budget > 0 ? pack_balanced_within(places, budget, dp_size)
                                               : pack_balanced(places, dp_size);
    const size_t share = bins.size() / static_cast<size_t>(dp_size);
    const auto begin = bins.begin() + static_cast<int64_t>(share) * dp_rank;
    return {begin, begin + static_cast<int64_t>(share)};
  }
  return bins_of_share(
      places, samples_of(std::ssize(lengths), dp_size, dp_rank),
      [&](const std::vector<int64_t>& own) {
        return pack_first_fit_decreasing(
            own, options.token_budget > 0 ? budget : std::max<int64_t>(1, c10::sum_integers(own)));
      });
}

Bins dynamic_bins(const std::vector<int64_t>& lengths, int64_t dp_size, int64_t dp_rank,
                  const BatchingOptions& options, int64_t multiple) {
  return bins_of_share(lengths, samples_of(std::ssize(lengths), dp_size, dp_rank),
                       [&](const std::vector<int64_t>& own) {
                         const int64_t longest = *std::max_element(own.begin(), own.end());
                         const int64_t all = std::ssize(own) * round_up(longest, multiple);
                         return dynamic_batches(
                             own, options.token_budget > 0 ? options.token_budget : all, multiple);
                       });
}

Microbatch packed_microbatch(const Batch& batch, const std::vector<int64_t>& samples, bool dummy,
                             const SequencePadding& padding) {
  Microbatch micro = microbatch_of(batch.select(samples), at::tensor(samples, at::kLong), dummy);
  micro.plan =
      make_pack(samples, lengths_of(batch), padding.sequence_multiple, padding.row_multiple);
  micro.input_ids = pack(batch.input_ids, *micro.plan);
  micro.positions = packed_positions(*micro.plan);
  const at::Tensor index =
      at::arange(batch.size() * batch.seq_len(), at::kLong).view({batch.size(), batch.seq_len()});
  micro.token_map = pack(index, *micro.plan, -1);
  if (dummy) micro.token_map.fill_(-1);
  return micro;
}

Microbatch dynamic_microbatch(const Batch& batch, const std::vector<int64_t>& samples, bool dummy,
                              int64_t multiple) {
  Microbatch micro = microbatch_of(batch.select(samples), at::tensor(samples, at::kLong), dummy);
  const int64_t longest = micro.batch.input_lengths.max().item<int64_t>();
  return in_rows(std::move(micro), round_up(longest, multiple));
}

}  // namespace

std::vector<Microbatch> deal_batches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                     const BatchingOptions& options, const SequencePadding& padding,
                                     int64_t samples_together,
                                     const std::function<int64_t(int64_t)>& fitting) {
  if (options.kind == BatchingKind::kFixed) {
    return deal_microbatches(batch, dp_size, dp_rank, options.micro_batch_size,
                             padding.row_multiple, samples_together);
  }
  const bool packed = options.kind == BatchingKind::kPacked;
  if (samples_together > 1) {
    throw_refused(fmt::format("{} batching parts the {} neighboring samples that the loss "
                              "compares",
                              packed ? "packed" : "dynamic", samples_together),
                  "use fixed batching");
  }
  const std::vector<int64_t> lengths = lengths_of(batch);
  const int64_t length_multiple = std::lcm(options.length_round, padding.row_multiple);
  if (options.token_budget > 0) {  // here a sequence's index is the sample's
    // Positions of a sequence alone. A packed row fits the budget if its sequence fits the rounded
    // one.
    check_token_budget(taken(lengths, packed ? padding.row_multiple : length_multiple),
                       options.token_budget);
  }
  const auto bins_of = [&](int64_t rank) {
    return packed ? packed_bins(lengths, dp_size, rank, options, padding)
                  : dynamic_bins(lengths, dp_size, rank, options, length_multiple);
  };
  size_t steps = 0;
  for (int64_t rank = 0; rank < dp_size; ++rank) steps = std::max(steps, bins_of(rank).size());
  if (fitting) steps = static_cast<size_t>(fitting(static_cast<int64_t>(steps)));
  Bins bins = bins_of(dp_rank);
  bins.resize(steps);
  std::vector<Microbatch> microbatches;
  for (const std::vector<int64_t>& bin : bins) {
    const bool dummy = bin.empty();
    const std::vector<int64_t> samples = dummy ? std::vector<int64_t>{0} : bin;
    microbatches.push_back(packed ? packed_microbatch(batch, samples, dummy, padding)
                                  : dynamic_microbatch(batch, samples, dummy, length_multiple));
  }
  return microbatches;
}

}  // namespace shardproof
