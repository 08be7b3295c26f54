// Next-token logprobs over tp x cp against log_softmax on one device.
#include "logprob/context_logprob.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests::context_logprob_test {
namespace {

constexpr int64_t kVocab = 13;  // no tp of 2, 3 or 4 divides it

struct Case {
  at::Tensor logits;  // [B, T, V] float64; the padding holds NaN
  at::Tensor target;  // [B, S]
  at::Tensor grad;    // [B, S-1]
};

Case make_case(int64_t batch, int64_t seq_len, int64_t positions, int64_t seed = 1) {
  Case out{.logits = random_tensor({batch, positions, kVocab}, seed) * 5,
           .target = spread_ids({batch, seq_len}, kVocab),
           .grad = random_tensor({batch, std::max<int64_t>(seq_len - 1, 0)}, seed + 1)};
  out.logits.narrow(1, seq_len, positions - seq_len).fill_(std::nan(""));
  return out;
}

PlainAnswer golden_of(const Case& test) {
  const int64_t seq_len = test.target.size(1);
  PlainAnswer answer = plain(test.logits.narrow(1, 0, seq_len), test.grad,
                             [&](const at::Tensor& x) { return plain_next_token(x, test.target); });
  answer.grad = at::constant_pad_nd(answer.grad, {0, 0, 0, test.logits.size(1) - seq_len}, 0);
  return answer;
}

// A cp rank's addend of the gradient when each rank holds a part of the loss: addends differ at
// every position.
at::Tensor part_of(const at::Tensor& grad, int64_t cp, int64_t cp_rank) {
  at::Tensor rest = grad.clone();
  at::Tensor part;
  for (int64_t r = 0; r <= cp_rank; ++r) {
    part = r == cp - 1 ? rest.clone() : rest * random_tensor(grad.sizes(), 100 + r);
    rest = rest - part;
  }
  return part;
}

enum class Loss { kSame, kPart };

// The results of every rank, with this gather and loss.
std::vector<NamedResults> run(const Case& test, const Split& split, SequenceGather gather,
                              Loss loss) {
  return on_every_rank_of(
      split.world, Mesh::training({.cp = split.cp, .tp = split.tp}),
      [&](MeshComm& comm, int64_t) -> NamedResults {
        Communicator& tp = comm.along("tp");
        Communicator& cp = comm.along("cp");
        const at::Tensor leaf =
            vocab_part(zigzag_of(test.logits, split.cp, cp.rank(), 1), split.tp, tp.rank())
                .requires_grad_();
        const at::Tensor out = context_next_token_logprobs(
            leaf, test.target, {.tp = tp, .cp = cp, .vocab_size = kVocab}, gather);
        const at::Tensor grad =
            loss == Loss::kSame ? test.grad : part_of(test.grad, split.cp, cp.rank());
        out.backward(grad);
        return {{"logprobs", out.detach()}, {"grad", leaf.grad()}};
      });
}

at::Tensor own_gradient(const at::Tensor& full, const Split& split, int64_t rank) {
  const Mesh mesh = Mesh::training({.cp = split.cp, .tp = split.tp});
  return vocab_part(zigzag_of(full, split.cp, mesh.coordinate("cp", rank), 1), split.tp,
                    mesh.coordinate("tp", rank), 0);
}

void check(const Case& test, const Split& split, SequenceGather gather, Loss loss) {
  INFO(describe(split) << " S=" << test.target.size(1) << " T=" << test.logits.size(1));
  const PlainAnswer golden = golden_of(test);
  const auto results = run(test, split, gather, loss);
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const at::Tensor own = own_gradient(golden.grad, split, static_cast<int64_t>(rank));
    CHECK(difference(golden.value, results[rank].at("logprobs"), 1e-12, 1) == "");
    CHECK(difference(own, results[rank].at("grad"), 1e-12, 1) == "");
    CHECK(exactly_zero(results[rank].at("grad").masked_select(own.eq(0))));
  }
}

TEST_CASE("next-token logprobs over tp and cp equal one device, with either gradient convention",
          "[LP-3][LP-7]") {
  for (const Split& split : all_splits()) {
    const int64_t multiple = split.cp == 1 ? 1 : 2 * split.cp;
    for (const int64_t seq_len : {1, 2, 5, 12, 17}) {
      const int64_t positions = (seq_len + multiple - 1) / multiple * multiple;
      for (const int64_t padding : {int64_t{0}, 2 * multiple}) {
        const Case test = make_case(2, seq_len, positions + padding);
        check(test, split, &sequence_gather_with_slice_backward, Loss::kSame);
        check(test, split, &sequence_gather_with_reduce_scatter_backward, Loss::kPart);
      }
    }
  }
}

TEST_CASE("the wrong gradient convention is cp times too much, or only a part", "[LP-7]") {
  for (const Split& split : {Split{1, 2}, Split{2, 3}, Split{1, 4}}) {
    INFO(describe(split));
    const Case test = make_case(2, 16 * split.cp, 16 * split.cp);
    const PlainAnswer golden = golden_of(test);
    const auto doubled =
        run(test, split, &sequence_gather_with_reduce_scatter_backward, Loss::kSame);
    const auto partial = run(test, split, &sequence_gather_with_slice_backward, Loss::kPart);
    for (size_t rank = 0; rank < doubled.size(); ++rank) {
      const at::Tensor own = own_gradient(golden.grad, split, static_cast<int64_t>(rank));
      CHECK(difference(golden.value, doubled[rank].at("logprobs")) == "");
      CHECK(difference(golden.value, partial[rank].at("logprobs")) == "");
      CHECK(difference(own, doubled[rank].at("grad")) != "");
      CHECK(difference(own * split.cp, doubled[rank].at("grad")) == "");
      CHECK(difference(own, partial[rank].at("grad"), 1e-2) != "");
    }
  }
}

// An order in which every rank gets T / cp positions.
std::vector<int64_t> shuffled(int64_t count) {
  std::vector<int64_t> order(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) order[static_cast<size_t>(i)] = (i * 7 + 3) % count;
  return order;
}

TEST_CASE("an explicit seq_index says how the sequence is cut", "[LP-4]") {
  for (const Split& split : all_splits()) {
    INFO(describe(split));
    const int64_t positions = 6 * split.cp + (split.cp % 7 == 0 ? 1 : 0);
    for (const int64_t seq_len : {positions, positions - 2}) {
      const Case test = make_case(2, seq_len, positions);
      const PlainAnswer golden = golden_of(test);
      const at::Tensor order = at::tensor(shuffled(positions), at::kLong);
      const int64_t share = positions / split.cp;
      const auto results = on_every_rank_of(
          split.world, Mesh::training({.cp = split.cp, .tp = split.tp}),
          [&](MeshComm& comm, int64_t) -> NamedResults {
            Communicator& tp = comm.along("tp");
            Communicator& cp = comm.along("cp");
            const at::Tensor own = order.narrow(0, cp.rank() * share, share);
            const at::Tensor leaf =
                vocab_part(test.logits.index_select(1, own), split.tp, tp.rank()).requires_grad_();
            const at::Tensor out = indexed_next_token_logprobs(
                leaf, test.target, order, {.tp = tp, .cp = cp, .vocab_size = kVocab},
                &sequence_gather_with_slice_backward);
            out.backward(test.grad);
            return {
                {"logprobs", out.detach()},
                {"grad", leaf.grad()},
                {"golden", vocab_part(golden.grad.index_select(1, own), split.tp, tp.rank(), 0)}};
          });
      for (const NamedResults& result : results) {
        CHECK(difference(golden.value, result.at("logprobs"), 1e-12, 1) == "");
        CHECK(difference(result.at("golden"), result.at("grad"), 1e-12, 1) == "");
        CHECK(exactly_zero(result.at("grad").masked_select(result.at("golden").eq(0))));
      }
    }
  }
}

TEST_CASE("a contiguous layout, strided logits and a strided gradient", "[LP-3]") {
  const Case test = make_case(4, 11, 12);
  const PlainAnswer golden = golden_of(test);
  const at::Tensor grad = test.grad.t().contiguous().t();
  const auto results = on_every_rank(
      Mesh::training({.cp = 3, .tp = 2}), [&](MeshComm& comm, int64_t) -> NamedResults {
        Communicator& tp = comm.along("tp");
        Communicator& cp = comm.along("cp");
        const at::Tensor own = vocab_part(test.logits.narrow(1, cp.rank() * 4, 4), 2, tp.rank());
        const at::Tensor leaf = own.permute({2, 1, 0}).contiguous().requires_grad_();
        const at::Tensor out = context_next_token_logprobs(
            leaf.permute({2, 1, 0}), test.target, {.tp = tp, .cp = cp, .vocab_size = kVocab},
            &sequence_gather_with_slice_backward, {.block_rows = 3}, ContextLayout::kContiguous);
        out.backward(grad);
        return {{"logprobs", out.detach()},
                {"grad", leaf.grad().permute({2, 1, 0})},
                {"golden", vocab_part(golden.grad.narrow(1, cp.rank() * 4, 4), 2, tp.rank(), 0)}};
      });
  for (const NamedResults& result : results) {
    CHECK(difference(golden.value, result.at("logprobs")) == "");
    CHECK(difference(result.at("golden"), result.at("grad")) == "");
  }
}

std::string refusal(const Split& split, int64_t local_positions, int64_t seq_len,
                    const std::vector<int64_t>& seq_index = {}) {
  const RankRuns runs = try_emulated_ranks(
      Mesh::training({.cp = split.cp, .tp = split.tp}), [&](MeshComm& comm, int64_t) {
        const LogprobAxes axes{
            .tp = comm.along("tp"), .cp = comm.along("cp"), .vocab_size = kVocab};
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
  return runs.error_text(split.cp - 1);
}

TEST_CASE("lengths that do not fit are refused with their numbers, in inference too",
          "[LP-3][LP-4]") {
  CHECK_THAT(refusal({1, 1}, 4, 5),
             Catch::Contains("5 targets per sample") && Catch::Contains("cover 4 positions"));
  CHECK_THAT(refusal({1, 2}, 4, 9), Catch::Contains("cover 8 positions"));
  CHECK_THAT(refusal({1, 2}, 3, 6), Catch::Contains("seq_len=6 does not split into 2*cp=4"));
  CHECK_THAT(refusal({1, 2}, 2, 4, {0, 1, 2}), Catch::Contains("seq_index of 3 entries"));
  CHECK_THAT(refusal({1, 2}, 2, 4, {0, 1, 1, 3}), Catch::Contains("twice"));
  CHECK_THAT(refusal({1, 2}, 2, 4, {0, 1, 4, 3}), Catch::Contains("not there"));
  CHECK(refusal({1, 2}, 2, 4, {3, 2, 1, 0}) == "");
  CHECK(refusal({1, 2}, 2, 3) == "");
}

}  // namespace
}  // namespace shardproof::tests::context_logprob_test
