// Packed logprobs over tp x cp against each sequence, scored alone on one device.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "logprob/context_logprob.h"
#include "sequence/cu_seqlens.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests::packed_logprob_test {
namespace {

constexpr int64_t kVocab = 11;

struct Pack {
  std::vector<int64_t> lengths, padded;
  int64_t unpacked_seqlen;
  at::Tensor logits = {};    // [T, V] float64; padding holds NaN
  at::Tensor target = {};    // [T]; padding holds -100
  at::Tensor grad = {};      // [N, unpacked_seqlen - 1]
  at::Tensor logprobs = {};  // golden, as grad
  at::Tensor grad_logits = {};
};

// With the golden, for which log_softmax scores each sequence alone.
Pack make_pack(const std::vector<int64_t>& lengths, int64_t cp, int64_t unpacked_seqlen,
               int64_t extra_padding = 0) {
  const int64_t multiple = cp == 1 ? 1 : 2 * cp;
  Pack pack{.lengths = lengths, .padded = {}, .unpacked_seqlen = unpacked_seqlen};
  for (const int64_t length : lengths) {
    pack.padded.push_back((length + multiple - 1) / multiple * multiple + extra_padding * multiple);
  }
  const int64_t total = cu_seqlens_of(pack.padded).back();
  pack.logits = random_tensor({total, kVocab}, 3) * 4;
  pack.target = spread_ids({total}, kVocab, 5);
  pack.grad = random_tensor({static_cast<int64_t>(lengths.size()), unpacked_seqlen - 1}, 4);
  pack.logprobs = at::zeros_like(pack.grad);
  pack.grad_logits = at::zeros_like(pack.logits);
  int64_t start = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const auto row = static_cast<int64_t>(i);
    const int64_t padding = pack.padded[i] - lengths[i];
    pack.logits.narrow(0, start + lengths[i], padding).fill_(std::nan(""));
    pack.target.narrow(0, start + lengths[i], padding).fill_(-100);
    const int64_t scored = std::min(std::max<int64_t>(lengths[i] - 1, 0), unpacked_seqlen - 1);
    if (scored > 0) {
      const at::Tensor leaf = pack.logits.narrow(0, start, scored).clone().requires_grad_();
      const at::Tensor alone = picked_logprob(leaf, pack.target.narrow(0, start + 1, scored));
      alone.backward(pack.grad[row].narrow(0, 0, scored));
      pack.logprobs[row].narrow(0, 0, scored).copy_(alone.detach());
      pack.grad_logits.narrow(0, start, scored).copy_(leaf.grad());
    }
    start += pack.padded[i];
  }
  return pack;
}

// A rank's positions: the zigzag chunks of each sequence in turn.
at::Tensor own_rows(const at::Tensor& full, const Pack& pack, int64_t cp, int64_t cp_rank) {
  std::vector<at::Tensor> parts = {full.narrow(0, 0, 0)};
  int64_t start = 0;
  for (const int64_t padded : pack.padded) {
    parts.push_back(zigzag_of(full.narrow(0, start, padded), cp, cp_rank, 0));
    start += padded;
  }
  return at::cat(parts, 0);
}

PackedTargets targets_of(const Pack& pack, bool real_lengths = true) {
  const auto tensor = [](const std::vector<int64_t>& lengths) {
    return at::tensor(cu_seqlens_of(lengths), at::kLong).to(at::kInt);
  };
  return {.target = pack.target.unsqueeze(0),
          .cu_seqlens_padded = tensor(pack.padded),
          .unpacked_seqlen = pack.unpacked_seqlen,
          .cu_seqlens = real_lengths ? tensor(pack.lengths) : at::Tensor()};
}

// kWhole: as one sample, which the pack has alone, with a part of the gradient on each cp rank.
enum class Scored { kPacked, kWhole };

NamedResults score(const Pack& pack, MeshComm& comm, Scored how = Scored::kPacked) {
  Communicator& tp = comm.along("tp");
  Communicator& cp = comm.along("cp");
  const at::Tensor own = own_rows(pack.logits, pack, cp.size(), cp.rank());
  const at::Tensor leaf = vocab_part(own, tp.size(), tp.rank()).unsqueeze(0).requires_grad_();
  const LogprobAxes axes{.tp = tp, .cp = cp, .vocab_size = kVocab};
  const at::Tensor out = how == Scored::kPacked
                             ? packed_next_token_logprobs(leaf, targets_of(pack), axes,
                                                          &sequence_gather_with_slice_backward)
                             : context_next_token_logprobs(
                                   leaf, pack.target.narrow(0, 0, pack.lengths[0]).unsqueeze(0),
                                   axes, &sequence_gather_with_reduce_scatter_backward);
  const at::Tensor part =
      at::arange(pack.grad.numel(), at::kLong).remainder(cp.size()).eq(cp.rank());
  out.backward(how == Scored::kPacked ? pack.grad : pack.grad * part.view(pack.grad.sizes()));
  return {{"logprobs", out.detach()}, {"grad", leaf.grad().squeeze(0)}};
}

void check(const Pack& pack, const Split& split, Scored how = Scored::kPacked) {
  const Mesh mesh = Mesh::training({.cp = split.cp, .tp = split.tp});
  const auto results = on_every_rank(
      mesh, [&](MeshComm& comm, int64_t) -> NamedResults { return score(pack, comm, how); });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    INFO(describe(split) << " rank " << rank << " lengths "
                         << Catch::Detail::stringify(pack.lengths));
    const auto& result = results[static_cast<size_t>(rank)];
    const at::Tensor logprobs = result.at("logprobs"), grad = result.at("grad");
    const at::Tensor own =
        vocab_part(own_rows(pack.grad_logits, pack, split.cp, mesh.coordinate("cp", rank)),
                   split.tp, mesh.coordinate("tp", rank), 0);
    CHECK(difference(pack.logprobs, logprobs, 1e-12, 1) == "");
    CHECK(difference(own, grad, 1e-12, 1) == "");
    CHECK(exactly_zero(logprobs.masked_select(pack.logprobs.eq(0))));
    CHECK(exactly_zero(grad.masked_select(own.eq(0))));
  }
}

// tp and cp of 1 to 4, alone and combined up to 8 ranks.
const Split kSplits[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {1, 2}, {1, 3},
                         {1, 4}, {2, 2}, {2, 3}, {3, 2}, {4, 2}, {2, 4}};

TEST_CASE("a pack equals each of its sequences alone", "[LP-5]") {
  for (const Split& split : kSplits) {
    check(make_pack({5, 1, 2, 16, 7}, split.cp, 16), split);   // one fills its row
    check(make_pack({3, 9}, split.cp, 6), split);              // one is longer than its row
    check(make_pack({0, 4, 0, 1, 0}, split.cp, 5, 1), split);  // empty ones, more padding
    check(make_pack({1}, split.cp, 1), split);                 // rows of width 0
    check(make_pack({2}, split.cp, 4), split);
  }
}

TEST_CASE("a sample that is scored whole, with padding that is no number", "[LP-3][LP-7]") {
  for (const Split& split : kSplits) {
    for (const int64_t length : {1, 2, 5, 12, 17}) {
      for (const int64_t padding : {0, 2}) {
        check(make_pack({length}, split.cp, length, padding), split, Scored::kWhole);
      }
    }
  }
}

TEST_CASE("without real lengths every position of a padded place is a token", "[LP-5]") {
  const Pack pack = make_pack({8, 4, 12}, 2, 12);
  const auto results = on_every_rank(
      Mesh::training({.cp = 2, .tp = 2}), [&](MeshComm& comm, int64_t) -> NamedResults {
        Communicator& tp = comm.along("tp");
        Communicator& cp = comm.along("cp");
        const at::Tensor leaf =
            vocab_part(own_rows(pack.logits, pack, 2, cp.rank()), 2, tp.rank()).unsqueeze(0);
        PackedTargets targets = targets_of(pack, /*real_lengths=*/false);
        targets.cu_seqlens_padded = targets.cu_seqlens_padded.to(at::kLong);
        targets.target = pack.target;
        return {{"logprobs", packed_next_token_logprobs(
                                 leaf, targets, {.tp = tp, .cp = cp, .vocab_size = kVocab},
                                 &sequence_gather_with_reduce_scatter_backward)}};
      });
  for (const NamedResults& result : results) {
    CHECK(difference(pack.logprobs, result.at("logprobs")) == "");
  }
}

TEST_CASE("changing a neighbour in the bin changes not one bit of a sequence", "[LP-5]") {
  for (const Split& split : {Split{1, 1}, Split{2, 1}, Split{1, 4}, Split{2, 2}, Split{2, 3}}) {
    INFO(describe(split));
    const Pack pack = make_pack({5, 13, 2}, split.cp, 13);
    Pack changed = pack;
    changed.logits = pack.logits.clone();
    changed.target = pack.target.clone();
    changed.grad = pack.grad.clone();
    changed.logits.narrow(0, pack.padded[0], 13).mul_(-3).add_(7);
    changed.target.narrow(0, pack.padded[0], 13).copy_(spread_ids({13}, kVocab, 2));
    changed.grad[1].mul_(11);
    const Mesh mesh = Mesh::training({.cp = split.cp, .tp = split.tp});
    const auto run = [&](const Pack& which) {
      return on_every_rank(mesh, [&](MeshComm& comm, int64_t) -> NamedResults {
        NamedResults result = score(which, comm);
        const int64_t share = pack.padded[0] / split.cp;
        const int64_t neighbour = pack.padded[1] / split.cp;
        const at::Tensor grad = result.at("grad");
        result["first"] = grad.narrow(0, 0, share);
        result["neighbour"] = grad.narrow(0, share, neighbour);
        result["last"] = grad.narrow(0, share + neighbour, grad.size(0) - share - neighbour);
        return result;
      });
    };
    const auto before = run(pack), after = run(changed);
    for (size_t rank = 0; rank < before.size(); ++rank) {
      CHECK(before[rank].at("logprobs")[0].equal(after[rank].at("logprobs")[0]));
      CHECK(before[rank].at("logprobs")[2].equal(after[rank].at("logprobs")[2]));
      CHECK_FALSE(before[rank].at("logprobs")[1].equal(after[rank].at("logprobs")[1]));
      CHECK(before[rank].at("first").equal(after[rank].at("first")));
      CHECK(before[rank].at("last").equal(after[rank].at("last")));
      CHECK_FALSE(before[rank].at("neighbour").equal(after[rank].at("neighbour")));
    }
  }
}

// Checks every `stride`-th list of three lengths from 1 to 4*cp+1, over cp 1 to 4, tp 1 and 2;
// returns the number of packs.
size_t sweep(int64_t stride) {
  size_t count = 0;
  for (int64_t cp = 1; cp <= 4; ++cp) {
    const int64_t longest = 4 * cp + 1;
    for (int64_t i = 0; i < longest * longest * longest; i += stride) {
      const Pack pack = make_pack(
          {1 + i / longest / longest, 1 + i / longest % longest, 1 + i % longest}, cp, 2 * cp + 3);
      for (const int64_t tp : {1, 2}) check(pack, {tp, cp});
      count += 2;
    }
  }
  return count;
}

TEST_CASE("every 97th list of three lengths, cp 1 to 4, tp 1 and 2", "[LP-5]") {
  CHECK(sweep(97) == 168);
}

// About a minute: unit_logprob "[sweep]"
TEST_CASE("every list of three lengths from 1 to 4*cp+1, cp 1 to 4, tp 1 and 2",
          "[.][sweep][LP-5]") {
  CHECK(sweep(1) == 15928);
}

std::string refusal(int64_t cp, int64_t positions, const std::vector<int64_t>& padded,
                    const std::vector<int64_t>& real = {}, int64_t local = -1) {
  const RankRuns runs =
      try_emulated_ranks(Mesh::training({.cp = cp}), [&](MeshComm& comm, int64_t) {
        const at::Tensor logits =
            at::zeros({1, local < 0 ? positions / cp : local, kVocab}, at::kDouble);
        const auto tensor = [](const std::vector<int64_t>& list) {
          return at::tensor(list, at::kLong).to(at::kInt);
        };
        packed_next_token_logprobs(
            logits,
            {.target = spread_ids({1, positions}, kVocab),
             .cu_seqlens_padded = tensor(padded),
             .unpacked_seqlen = 4,
             .cu_seqlens = real.empty() ? at::Tensor() : tensor(real)},
            {.tp = comm.along("tp"), .cp = comm.along("cp"), .vocab_size = kVocab},
            &sequence_gather_with_slice_backward);
      });
  return runs.error_text(cp - 1);
}

TEST_CASE("a target outside the vocabulary is refused where it counts, and not read in padding",
          "[LP-5]") {
  for (const int64_t bad : {kVocab, int64_t{-1}}) {
    for (const bool in_padding : {false, true}) {
      const RankRuns runs =
          try_emulated_ranks(Mesh::training({.cp = 2, .tp = 2}), [&](MeshComm& comm, int64_t) {
            PackedTargets packed = targets_of(make_pack({5, 8}, 2, 8));
            packed.target.select(1, in_padding ? 6 : 3).fill_(bad);
            packed_next_token_logprobs(
                at::zeros({1, 8, 6}, at::kDouble), packed,
                {.tp = comm.along("tp"), .cp = comm.along("cp"), .vocab_size = kVocab},
                &sequence_gather_with_slice_backward);
          });
      // Zigzag gives sequence 0 as 0 1 | 6 7 and 2 3 | 4 5; position 2 predicts token 3.
      INFO(bad << (in_padding ? " in padding" : ""));
      const std::string text = runs.error_text(0) + runs.error_text(2);
      if (in_padding) {
        CHECK(text == "");
      } else {
        CHECK_THAT(text, Catch::Contains("target token " + std::to_string(bad) +
                                         " is outside the vocabulary of 11 tokens"));
      }
    }
  }
}

TEST_CASE("malformed boundaries are refused with their numbers", "[LP-5]") {
  CHECK_THAT(refusal(1, 8, {0, 5, 3, 8}), Catch::Contains("falls from 5 to 3 at sequence 1"));
  CHECK_THAT(refusal(1, 8, {0, 5, 7}), Catch::Contains("ends at 7, the row has 8"));
  CHECK_THAT(refusal(1, 8, {1, 8}), Catch::Contains("begins with 1"));
  CHECK_THAT(refusal(1, 8, {0, 4, 8}, {0, 5, 6}),
             Catch::Contains("sequence 0 has 5 tokens and a padded length of 4"));
  CHECK_THAT(refusal(1, 8, {0, 4, 8}, {0, 4}), Catch::Contains("2 entries"));
  CHECK_THAT(refusal(2, 8, {0, 2, 8}), Catch::Contains("seq_len=2 does not split into 2*cp=4"));
  CHECK_THAT(refusal(2, 8, {0, 4, 8}, {}, 3), Catch::Contains("8 packed targets"));
  CHECK(refusal(2, 8, {0, 4, 8}, {0, 1, 4}) == "");
}

}  // namespace
}  // namespace shardproof::tests::packed_logprob_test
