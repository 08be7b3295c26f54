// Ring attention against plain attention on one device where no scenario runs it, and what no
// scenario shows of it: equal bits, and sums that are rounded once.
#include "parallel/cp/ring_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "sequence/cu_seqlens.h"
#include "sequence/sequence_shard.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

using List = std::vector<int64_t>;

constexpr int64_t kHeads = 6, kKvHeads = 2, kHeadDim = 4;
constexpr Rotation kRotations[] = {Rotation::kSendRecv, Rotation::kAllToAll, Rotation::kAllGather};

// One row of sequences, and how a ring attends to it.
struct RingCase {
  List lengths, padded;
  ContextLayout kind = ContextLayout::kZigzag;
  Rotation rotation = Rotation::kSendRecv;
  AttentionRule rule = {};
  int64_t tile_length = 512;

  SequenceLayout layout(int64_t cp) const {
    return SequenceLayout::packed(cu_seqlens_of(lengths), cu_seqlens_of(padded), cp, kind);
  }
  // [B, T, heads, D] with different elements, which are not 0 in padding.
  at::Tensor full(int64_t heads, int64_t seed) const {
    return random_tensor({2, cu_seqlens_of(padded).back(), heads, kHeadDim}, seed) * 3;
  }
};

NamedResults results_of(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const at::Tensor& out, const at::Tensor& grad) {
  out.backward(grad);
  return {{"out", out.detach()}, {"grad q", q.grad()}, {"grad k", k.grad()}, {"grad v", v.grad()}};
}

// Every score, a mask by token, softmax, and autograd for the gradients, of inputs that were
// rounded to `dtype`; padding gets 0.
NamedResults golden_of(const RingCase& c, at::ScalarType dtype) {
  at::set_num_threads(1);  // on small tensors, more threads are slower
  List sequence, position;
  for (size_t s = 0; s < c.padded.size(); ++s) {
    for (int64_t p = 0; p < c.padded[s]; ++p) {
      sequence.push_back(p < c.lengths[s] ? static_cast<int64_t>(s) : -1);
      position.push_back(p);
    }
  }
  const at::Tensor of = at::tensor(sequence, at::kLong), place = at::tensor(position, at::kLong);
  const at::Tensor ahead = place.unsqueeze(0) - place.unsqueeze(1);
  at::Tensor seen = of.unsqueeze(0).eq(of.unsqueeze(1));
  if (c.rule.causal) seen = seen.logical_and(ahead.le(0));
  if (c.rule.window > 0) seen = seen.logical_and(ahead.abs().lt(c.rule.window));

  const auto leaf = [&](int64_t heads, int64_t seed) {
    return c.full(heads, seed).to(dtype).to(at::kDouble).requires_grad_();
  };
  const at::Tensor q = leaf(kHeads, 1), k = leaf(kKvHeads, 2), v = leaf(kKvHeads, 3);
  const auto by_query_head = [](const at::Tensor& kv) {
    return kv.repeat_interleave(kHeads / kKvHeads, 2).transpose(1, 2);
  };
  const at::Tensor scores =
      at::matmul(q.transpose(1, 2), by_query_head(k).transpose(2, 3)) / std::sqrt(kHeadDim);
  const at::Tensor weights =
      scores.masked_fill(seen.logical_not(), -std::numeric_limits<double>::infinity()).softmax(-1);
  const at::Tensor out = at::matmul(weights, by_query_head(v)).transpose(1, 2);
  return results_of(q, k, v, out * of.ge(0).view({1, -1, 1, 1}), leaf(kHeads, 4).detach());
}

NamedResults attend(const RingCase& c, Communicator& cp, at::ScalarType dtype = at::kDouble) {
  const SequenceLayout layout = c.layout(cp.size());
  const auto leaf = [&](int64_t heads, int64_t seed) {
    return sequence_shard(c.full(heads, seed).to(dtype), layout, cp.rank(), 1).requires_grad_();
  };
  const at::Tensor q = leaf(kHeads, 1), k = leaf(kKvHeads, 2), v = leaf(kKvHeads, 3);
  const at::Tensor out = ring_attention(
      q, k, v, layout, cp, {.rotation = c.rotation, .rule = c.rule, .tile_length = c.tile_length});
  return results_of(q, k, v, out, leaf(kHeads, 4).detach());
}

std::vector<NamedResults> attend_on_all(const RingCase& c, int64_t cp,
                                        World world = World::kEmulated,
                                        at::ScalarType dtype = at::kDouble) {
  return on_every_rank_of(world, Mesh({{"cp", cp}}), [&](MeshComm& comm, int64_t) {
    return attend(c, comm.along("cp"), dtype);
  });
}

// "" if every rank has its part of the golden's output and of all three gradients.
std::string wrong_ring(const RingCase& c, int64_t cp, World world = World::kEmulated,
                       at::ScalarType dtype = at::kDouble, double tolerance = 1e-12) {
  const NamedResults golden = golden_of(c, dtype);
  // A gradient that is 0 by algebra (one key alone) is compared at the scale of the others.
  double largest = 0;
  for (const auto& [name, full] : golden) {
    largest = std::max(largest, full.abs().max().item<double>());
  }
  const std::vector<NamedResults> ranks = attend_on_all(c, cp, world, dtype);
  std::string text;
  for (int64_t rank = 0; rank < cp; ++rank) {
    for (const auto& [name, full] : golden) {
      const at::Tensor& actual = ranks[static_cast<size_t>(rank)].at(name);
      const double scale = std::max(full.abs().max().item<double>(), 0.01 * largest);
      const at::Tensor want = sequence_shard(full, c.layout(cp), rank, 1);
      if (actual.scalar_type() != dtype) text += name + " has another dtype\n";
      const std::string wrong = difference(want, actual.to(at::kDouble), tolerance, scale);
      if (!wrong.empty()) text += name + " of rank " + std::to_string(rank) + " " + wrong + "\n";
    }
  }
  return text;
}

// Short sequences, below 2*cp tokens, without padding and of no token; the row ends with padding.
RingCase short_sequences(ContextLayout kind, int64_t cp) {
  RingCase c{.lengths = {3, 1, 24, 7, 0, 2, 0}, .padded = {}, .kind = kind};
  const int64_t multiple = sequence_multiple(kind, cp);
  for (const int64_t length : c.lengths) {
    c.padded.push_back((length + multiple - 1) / multiple * multiple);
  }
  c.padded.back() += 2 * cp;
  if (kind == ContextLayout::kRow) c.padded.back() += cp - cu_seqlens_of(c.padded).back() % cp;
  return c;
}

}  // namespace

TEST_CASE("each layout and rotation gives what one device gives, under rules that no model has",
          "[CP-1][CP-3][CP-5]") {
  // Windows of none, one token, a chunk of some layouts, and more than all; each with short tiles.
  const std::vector<std::pair<int64_t, int64_t>> windows = {{0, 3}, {1, 4}, {4, 512}, {31, 5}};
  for (const int64_t cp : {1, 2, 3, 4}) {
    for (const ContextLayout kind :
         {ContextLayout::kZigzag, ContextLayout::kContiguous, ContextLayout::kRow}) {
      for (const Rotation rotation : kRotations) {
        for (const bool causal : {true, false}) {
          for (const auto& [window, tile] : windows) {
            RingCase c = short_sequences(kind, cp);
            c.rotation = rotation;
            c.rule = {.causal = causal, .window = window};
            c.tile_length = tile;
            INFO("cp=" << cp << " " << name_of(kind) << " " << name_of(rotation) << " window "
                       << window << " tile " << tile << (causal ? " causal" : ""));
            CHECK(wrong_ring(c, cp) == "");
          }
        }
      }
    }
  }
}

TEST_CASE("lower precisions round the results once", "[CP-1]") {
  for (const Rotation rotation : kRotations) {
    const RingCase c{.lengths = {21, 10}, .padded = {24, 12}, .rotation = rotation};
    CHECK(wrong_ring(c, 3, World::kEmulated, at::kFloat, 2e-6) == "");
    CHECK(wrong_ring(c, 3, World::kEmulated, at::kBFloat16, 4e-3) == "");
    CHECK(wrong_ring(c, 3, World::kGloo, at::kBFloat16, 4e-3) == "");
  }
}

TEST_CASE("bfloat16 sums over the ring are rounded once, at home", "[CP-1]") {
  // On one rank there is no communication, and only the order of float32 sums differs.
  RingCase c{.lengths = {48}, .padded = {48}, .kind = ContextLayout::kContiguous};
  const NamedResults one = attend_on_all(c, 1, World::kEmulated, at::kBFloat16)[0];
  for (const Rotation rotation : kRotations) {
    c.rotation = rotation;
    std::vector<at::Tensor> parts;
    for (const NamedResults& rank : attend_on_all(c, 4, World::kEmulated, at::kBFloat16)) {
      parts.push_back(rank.at("grad k"));
    }
    const at::Tensor differs = at::cat(parts, 1).ne(one.at("grad k"));
    INFO(differs.sum().item<int64_t>() << " of " << differs.numel() << " elements");
    CHECK(differs.sum().item<int64_t>() * 50 <= differs.numel());
  }
}

TEST_CASE("each run gives the same bits, on either world", "[CP-1]") {
  for (const Rotation rotation : kRotations) {
    const RingCase c{.lengths = {27, 5}, .padded = {32, 8}, .rotation = rotation, .tile_length = 2};
    // Gloo's reduce_scatter sums in another order.
    const bool reduces = rotation == Rotation::kAllGather;
    const auto first = attend_on_all(c, 4);
    const auto second = attend_on_all(c, 4, reduces ? World::kEmulated : World::kGloo);
    for (size_t rank = 0; rank < 4; ++rank) {
      for (const auto& [name, tensor] : first[rank]) CHECK(tensor.equal(second[rank].at(name)));
    }
  }
}

}  // namespace shardproof::tests
