// Lengths and lists that next-token logprobs over tp x cp refuse; their values are in
// packed_logprob_test.cpp and scenarios/logprob/context.yaml.
#include "logprob/context_logprob.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests::context_logprob_test {
namespace {

constexpr int64_t kVocab = 13;

std::string refusal(int64_t cp, int64_t local_positions, int64_t seq_len,
                    const std::vector<int64_t>& seq_index = {}) {
  const RankRuns runs = try_emulated_ranks(Mesh::training({.cp = cp}), [&](MeshComm& comm,
                                                                           int64_t) {
    const LogprobAxes axes{.tp = comm.along("tp"), .cp = comm.along("cp"), .vocab_size = kVocab};
    const at::Tensor logits = at::zeros({1, local_positions, kVocab}, at::kDouble);
    const at::Tensor target = spread_ids({1, seq_len}, kVocab);
    const at::NoGradGuard inference;
    if (seq_index.empty()) {
      context_next_token_logprobs(logits, target, axes, &sequence_gather_with_slice_backward);
    } else {
      indexed_next_token_logprobs(logits, target, at::tensor(seq_index, at::kLong), axes,
                                  &sequence_gather_with_slice_backward);
    }
  });
  return runs.error_text(cp - 1);
}

TEST_CASE("lengths that do not fit are refused with their numbers, in inference too",
          "[LP-3][LP-4]") {
  CHECK_THAT(refusal(1, 4, 5),
             Catch::Contains("5 targets per sample") && Catch::Contains("cover 4 positions"));
  CHECK_THAT(refusal(2, 4, 9), Catch::Contains("cover 8 positions"));
  CHECK_THAT(refusal(2, 3, 6), Catch::Contains("seq_len=6 does not split into 2*cp=4"));
  CHECK_THAT(refusal(2, 2, 4, {0, 1, 2}), Catch::Contains("seq_index of 3 entries"));
  CHECK_THAT(refusal(2, 2, 4, {0, 1, 1, 3}), Catch::Contains("twice"));
  CHECK_THAT(refusal(2, 2, 4, {0, 1, 4, 3}), Catch::Contains("not there"));
  CHECK(refusal(2, 2, 4, {3, 2, 1, 0}) == "");
  CHECK(refusal(2, 2, 3) == "");
}

}  // namespace
}  // namespace shardproof::tests::context_logprob_test
