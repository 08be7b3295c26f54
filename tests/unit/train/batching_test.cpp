// Packed and dynamic microbatches: each token once, within budgets, and dummies without effect.
#include "train/batching.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <set>

#include "base/error.h"

namespace shardproof {
namespace {

Batch ragged_batch() {
  return seeded_batch({.batch_size = 7,
                       .seq_len = 14,
                       .lengths = {9, 1, 14, 2, 7, 5, 12},
                       .vocab_size = 17,
                       .seed = 3});
}

std::vector<int64_t> values_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  return {flat.data_ptr<int64_t>(), flat.data_ptr<int64_t>() + flat.numel()};
}

// The tokens, results and sizes of all dp ranks' microbatches for one batch.
struct Dealt {
  std::multiset<int64_t> tokens, results;
  double counted = 0;
  int64_t longest_row = 0;    // positions
  int64_t largest = 0;        // positions of a microbatch
  std::vector<size_t> steps;  // by rank
};

Dealt deal(const Batch& batch, int64_t dp, const BatchingOptions& options,
           const SequencePadding& padding) {
  Dealt out;
  for (int64_t rank = 0; rank < dp; ++rank) {
    const auto microbatches = deal_batches(batch, dp, rank, options, padding);
    out.steps.push_back(microbatches.size());
    for (const Microbatch& micro : microbatches) {
      out.counted += micro.loss_mask.sum().item<double>();
      out.longest_row = std::max(out.longest_row, micro.input_ids.size(1));
      out.largest = std::max(out.largest, micro.input_ids.numel());
      const std::vector<int64_t> map = values_of(micro.token_map), ids = values_of(micro.input_ids),
                                 positions = values_of(micro.positions);
      for (size_t i = 0; i < map.size(); ++i) {
        if (map[i] < 0) continue;
        out.tokens.insert(map[i]);
        CHECK(positions[i] == map[i] % batch.seq_len());
        CHECK(ids[i] == batch.input_ids.view(-1)[map[i]].item<int64_t>());
      }
      for (const int64_t index : values_of(micro.result_map)) {
        if (index >= 0) out.results.insert(index);
      }
    }
  }
  return out;
}

void check_complete(const Batch& batch, const Dealt& dealt) {
  CHECK(dealt.tokens.size() == static_cast<size_t>(batch.input_lengths.sum().item<int64_t>()));
  CHECK(std::set<int64_t>(dealt.tokens.begin(), dealt.tokens.end()).size() == dealt.tokens.size());
  CHECK(dealt.results.size() == static_cast<size_t>(batch.input_ids.numel()));
  CHECK(std::set<int64_t>(dealt.results.begin(), dealt.results.end()).size() ==
        dealt.results.size());
  CHECK(dealt.counted == Approx(batch.loss_mask().sum().item<double>()));
  for (const size_t steps : dealt.steps) CHECK(steps == dealt.steps[0]);
}

TEST_CASE("packed rows hold every token once, within the budget, as many rows on every rank",
          "[packing][PW-2]") {
  const Batch batch = ragged_batch();
  for (const int64_t dp : {1, 2, 3, 9}) {
    for (const auto algorithm : {PackAlgorithm::kFirstFitDecreasing, PackAlgorithm::kBalanced}) {
      for (const int64_t budget : {0, 17, 32, 1000}) {
        for (const SequencePadding& padding :
             {SequencePadding{}, SequencePadding{4, 8}, SequencePadding{1, 3}}) {
          INFO("dp " << dp << " budget " << budget << " row multiple " << padding.row_multiple);
          const BatchingOptions options{
              .kind = BatchingKind::kPacked, .token_budget = budget, .algorithm = algorithm};
          if (budget == 17 && padding.row_multiple == 8) {  // 16 of 17 can be cut, and all are used
            CHECK(deal(batch, dp, options, padding).longest_row == 16);
          }
          const Dealt dealt = deal(batch, dp, options, padding);
          check_complete(batch, dealt);
          CHECK(dealt.longest_row % padding.row_multiple == 0);
          if (budget > 0) CHECK(dealt.longest_row <= budget);
          if (budget == 0) CHECK(dealt.steps[0] == 1);
        }
      }
    }
  }
}

TEST_CASE("dynamic batches keep rows times length within the budget", "[packing][PW-2]") {
  const Batch batch = ragged_batch();
  for (const int64_t dp : {1, 2, 3, 9}) {
    for (const int64_t round : {1, 4, 16}) {
      for (const int64_t multiple : {1, 6}) {
        const BatchingOptions options{
            .kind = BatchingKind::kDynamic, .token_budget = 48, .length_round = round};
        const Dealt dealt = deal(batch, dp, options, {.row_multiple = multiple});
        check_complete(batch, dealt);
        CHECK(dealt.largest <= 48);
        CHECK(dealt.longest_row % round == 0);
        CHECK(dealt.longest_row % multiple == 0);
      }
    }
  }
}

TEST_CASE("a sequence that the budget cannot hold is refused with both numbers",
          "[packing][PW-2]") {
  const Batch batch = ragged_batch();
  const BatchingOptions packed{.kind = BatchingKind::kPacked, .token_budget = 13};
  for (const int64_t dp : {1, 3}) {
    CHECK_THROWS_WITH(deal_batches(batch, dp, dp - 1, packed, {}),
                      Catch::Contains("sequence 2 takes 14 tokens") && Catch::Contains("is 13"));
  }
  const BatchingOptions dynamic{
      .kind = BatchingKind::kDynamic, .token_budget = 15, .length_round = 8};
  CHECK_THROWS_WITH(deal_batches(batch, 1, 0, dynamic, {}), Catch::Contains("takes 16 tokens"));
}

TEST_CASE("a sequence too long for what can be cut of a packed budget is refused as it was given",
          "[packing][PW-2]") {
  // Rows are multiples of 8, so 8 of 15 positions are used. The last rank begins with sequence 4.
  const Batch batch = seeded_batch(
      {.batch_size = 6, .seq_len = 9, .lengths = {2, 3, 1, 5, 9, 4}, .vocab_size = 17, .seed = 3});
  for (const auto algorithm : {PackAlgorithm::kFirstFitDecreasing, PackAlgorithm::kBalanced}) {
    const auto dealt = [&](int64_t budget, int64_t rank) {
      return deal_batches(
          batch, 3, rank,
          {.kind = BatchingKind::kPacked, .token_budget = budget, .algorithm = algorithm},
          {.sequence_multiple = 1, .row_multiple = 8});
    };
    for (const int64_t rank : {0, 2}) {
      CHECK_THROWS_WITH(dealt(15, rank), Catch::Contains("sequence 4 takes 16 tokens") &&
                                             Catch::Contains("is 15") &&
                                             Catch::Contains("raise the budget to 16"));
      CHECK_NOTHROW(dealt(16, rank));
    }
  }
}

}  // namespace
}  // namespace shardproof
