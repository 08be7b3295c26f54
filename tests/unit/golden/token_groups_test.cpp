#include "golden/token_groups.h"

#include <catch2/catch.hpp>

namespace shardproof::tests {

using Numbers = std::vector<int64_t>;

// Written by hand, since golden and ranks may share a wrong partition.
TEST_CASE("The golden deals samples to ranks and microbatches as a written list does",
          "[golden][MR-10]") {
  sim::CaseSpec spec;
  spec.parallel.dp = 3;
  spec.micro_batch_size = 2;
  const golden::Dealt dealt = golden::deal_samples(spec, 8);
  CHECK(dealt.share == Numbers{0, 0, 0, 1, 1, 1, 2, 2});
  CHECK(dealt.microbatch == Numbers{0, 0, 1, 0, 0, 1, 0, 0});
  spec.micro_batch_size = 0;
  CHECK(golden::deal_samples(spec, 2).share == Numbers{0, 1});
  spec.loss.kind = LossKind::kPreference;
  spec.parallel.dp = 2;
  CHECK(golden::deal_samples(spec, 6).share == Numbers{0, 0, 0, 0, 1, 1});
}

TEST_CASE("The golden cuts positions as a written list does", "[golden][MR-7]") {
  sim::ParallelSpec parallel;
  CHECK(golden::ranks_of_positions(parallel, 3) == Numbers{0, 0, 0});
  parallel.cp = 2;
  CHECK(golden::ranks_of_positions(parallel, 7) == Numbers{0, 0, 1, 1, 1, 1, 0});
  parallel.ulysses = 2;  // halves of {0, 7} and of {1 .. 3, 4 .. 6}, two positions a chunk
  CHECK(golden::ranks_of_positions(parallel, 8) == Numbers{0, 0, 2, 2, 3, 3, 1, 1});
  parallel.context_layout = ContextLayout::kContiguous;
  CHECK(golden::ranks_of_positions(parallel, 8) == Numbers{0, 0, 1, 1, 2, 2, 3, 3});
  parallel = {};
  parallel.tp = 2;
  CHECK(golden::ranks_of_positions(parallel, 4) == Numbers{0, 0, 0, 0});
  parallel.sequence_parallel = true;
  CHECK(golden::ranks_of_positions(parallel, 3) == Numbers{0, 0, 1});
}

}  // namespace shardproof::tests
