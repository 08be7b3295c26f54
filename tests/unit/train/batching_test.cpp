// Packed and dynamic microbatches keep within budgets, and what does not fit is refused.
#include "train/batching.h"

#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

Batch ragged_batch() {
  return seeded_batch({.batch_size = 7,
                       .seq_len = 14,
                       .lengths = {9, 1, 14, 2, 7, 5, 12},
                       .vocab_size = 17,
                       .seed = 3});
}

// The sizes of all dp ranks' microbatches for one batch.
struct Dealt {
  int64_t longest_row = 0;  // positions
  int64_t largest = 0;      // positions of a microbatch
  size_t steps = 0;         // microbatches of each rank
};

Dealt deal(const Batch& batch, int64_t dp, const BatchingOptions& options,
           const SequencePadding& padding) {
  Dealt out;
  for (int64_t rank = 0; rank < dp; ++rank) {
    const auto microbatches = deal_batches(batch, dp, rank, options, padding);
    if (rank == 0) out.steps = microbatches.size();
    CHECK(microbatches.size() == out.steps);
    for (const Microbatch& micro : microbatches) {
      out.longest_row = std::max(out.longest_row, micro.input_ids.size(1));
      out.largest = std::max(out.largest, micro.input_ids.numel());
    }
  }
  return out;
}

TEST_CASE("packed rows are within the budget, as many rows on every rank", "[packing][PW-2]") {
  for (const int64_t dp : {1, 2, 3, 9}) {
    for (const auto algorithm : {PackAlgorithm::kFirstFitDecreasing, PackAlgorithm::kBalanced}) {
      for (const int64_t budget : {0, 17, 32, 1000}) {
        for (const SequencePadding& padding :
             {SequencePadding{}, SequencePadding{4, 8}, SequencePadding{1, 3}}) {
          INFO("dp " << dp << " budget " << budget << " row multiple " << padding.row_multiple);
          const Dealt dealt =
              deal(ragged_batch(), dp,
                   {.kind = BatchingKind::kPacked, .token_budget = budget, .algorithm = algorithm},
                   padding);
          CHECK(dealt.longest_row % padding.row_multiple == 0);
          if (budget > 0) CHECK(dealt.longest_row <= budget);
          if (budget == 0) CHECK(dealt.steps == 1);
          if (budget == 17 && padding.row_multiple == 8) {  // 16 of 17 can be cut, and all are used
            CHECK(dealt.longest_row == 16);
          }
        }
      }
    }
  }
}

TEST_CASE("dynamic batches keep rows times length within the budget", "[packing][PW-2]") {
  for (const int64_t dp : {1, 2, 3, 9}) {
    for (const int64_t round : {1, 4, 16}) {
      for (const int64_t multiple : {1, 6}) {
        const Dealt dealt =
            deal(ragged_batch(), dp,
                 {.kind = BatchingKind::kDynamic, .token_budget = 48, .length_round = round},
                 {.row_multiple = multiple});
        CHECK(dealt.largest <= 48);
        CHECK(dealt.longest_row % round == 0);
        CHECK(dealt.longest_row % multiple == 0);
      }
    }
  }
}

TEST_CASE("dummies fill a batch up to a number that fits", "[packing]") {
  const auto next_multiple_of_8 = [](int64_t count) { return (count + 7) / 8 * 8; };
  for (const auto kind : {BatchingKind::kPacked, BatchingKind::kDynamic}) {
    for (const int64_t rank : {0, 1}) {
      const BatchingOptions options{.kind = kind, .token_budget = 15};
      const auto dealt = deal_batches(ragged_batch(), 2, rank, options, {}, 1, next_multiple_of_8);
      REQUIRE(dealt.size() == 8);
      const size_t real = deal_batches(ragged_batch(), 2, rank, options, {}).size();
      REQUIRE(real < 8);
      for (size_t i = real; i < dealt.size(); ++i) {
        CHECK(dealt[i].loss_mask.sum().item<double>() == 0);
        CHECK(dealt[i].token_map.eq(-1).all().item<bool>());
      }
    }
  }
  const BatchingOptions fixed{.micro_batch_size = 2};
  CHECK(deal_batches(ragged_batch(), 2, 0, fixed, {}, 1, next_multiple_of_8).size() == 2);
}

TEST_CASE("a sequence that the budget cannot hold is refused with both numbers",
          "[packing][PW-2]") {
  const BatchingOptions dynamic{
      .kind = BatchingKind::kDynamic, .token_budget = 15, .length_round = 8};
  CHECK_THROWS_WITH(deal_batches(ragged_batch(), 1, 0, dynamic, {}),
                    Catch::Contains("takes 16 tokens"));
  // Rows are multiples of 8, so 8 of 15 positions are used. The last rank begins with sequence 4.
  const Batch batch = seeded_batch(
      {.batch_size = 6, .seq_len = 9, .lengths = {2, 3, 1, 5, 9, 4}, .vocab_size = 17, .seed = 3});
  for (const auto algorithm : {PackAlgorithm::kFirstFitDecreasing, PackAlgorithm::kBalanced}) {
    const auto dealt = [&](int64_t budget, int64_t rank, int64_t row_multiple) {
      return deal_batches(
          batch, 3, rank,
          {.kind = BatchingKind::kPacked, .token_budget = budget, .algorithm = algorithm},
          {.sequence_multiple = 1, .row_multiple = row_multiple});
    };
    for (const int64_t rank : {0, 2}) {
      CHECK_THROWS_WITH(dealt(8, rank, 1),
                        Catch::Contains("sequence 4 takes 9 tokens") && Catch::Contains("is 8"));
      CHECK_THROWS_WITH(dealt(15, rank, 8), Catch::Contains("sequence 4 takes 16 tokens") &&
                                                Catch::Contains("is 15") &&
                                                Catch::Contains("raise the budget to 16"));
      CHECK_NOTHROW(dealt(16, rank, 8));
    }
  }
}

TEST_CASE("batching that parts pairs is refused in training, and scores", "[train][PW-2][PW-3]") {
  const Batch pairs = small_batch().slice(0, 4);
  for (const BatchingKind kind : {BatchingKind::kPacked, BatchingKind::kDynamic}) {
    Trial trial{.mesh = Mesh::training({})};
    trial.options.loss.kind = LossKind::kPreference;
    trial.options.batching.kind = kind;
    const std::string said = std::string(kind == BatchingKind::kPacked ? "packed" : "dynamic") +
                             " batching parts the 2 neighboring samples";
    CHECK_THROWS_WITH(train_with(trial, [&](Trainer& t, MeshComm&) { t.step(pairs); }),
                      Catch::Contains(said));
    CHECK_THROWS_WITH(train_with(trial, [&](Trainer& t, MeshComm&) { t.evaluate(pairs); }),
                      Catch::Contains(said));
    CHECK_NOTHROW(train_with(trial, [&](Trainer& t, MeshComm&) { t.score(pairs); }));
  }
}

}  // namespace
}  // namespace shardproof::tests
