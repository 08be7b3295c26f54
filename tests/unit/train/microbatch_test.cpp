// A global batch is distributed over dp ranks and microbatches.
#include "train/microbatch.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <set>

#include "parallel/data/replicate.h"

namespace shardproof {
namespace {

Batch small_batch(int64_t size, int64_t seq_len) {
  return seeded_batch(
      {.batch_size = size, .seq_len = seq_len, .lengths = {}, .vocab_size = 17, .seed = 3});
}

TEST_CASE("samples_of deals every sample once, in contiguous blocks", "[PW-2]") {
  for (int64_t batch = 1; batch <= 7; ++batch) {
    for (int64_t dp = 1; dp <= 5; ++dp) {
      int64_t next = 0;
      for (int64_t rank = 0; rank < dp; ++rank) {
        const SampleRange range = samples_of(batch, dp, rank);
        CHECK(range.first == next);
        next += range.count;
      }
      CHECK(next == batch);
    }
  }
}

TEST_CASE("every dp rank has the same number of microbatches, every real token once", "[PW-2]") {
  const Batch batch = small_batch(5, 6);
  for (int64_t dp : {1, 2, 3, 7}) {
    for (int64_t size : {0, 1, 2, 4}) {
      std::multiset<int64_t> tokens;
      double counted = 0;
      const size_t steps = deal_microbatches(batch, dp, 0, size, 4).size();
      for (int64_t rank = 0; rank < dp; ++rank) {
        const auto microbatches = deal_microbatches(batch, dp, rank, size, 4);
        CHECK(microbatches.size() == steps);
        for (const Microbatch& micro : microbatches) {
          CHECK(micro.input_ids.size(1) == 8);
          counted += micro.loss_mask.sum().item<double>();
          const at::Tensor map = micro.token_map.contiguous();
          for (int64_t i = 0; i < map.numel(); ++i) {
            if (map.data_ptr<int64_t>()[i] >= 0) tokens.insert(map.data_ptr<int64_t>()[i]);
          }
        }
      }
      CHECK(tokens.size() == static_cast<size_t>(batch.input_lengths.sum().item<int64_t>()));
      CHECK(std::set<int64_t>(tokens.begin(), tokens.end()).size() == tokens.size());
      CHECK(counted == Approx(batch.loss_mask().sum().item<double>()));
    }
  }
}

}  // namespace
}  // namespace shardproof
