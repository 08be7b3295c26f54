// One case of ring attention on every rank of a world, against plain attention on one device.
#pragma once

#include <string>

#include "parallel/cp/ring_attention.h"
#include "sequence/sequence_shard.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/unit/parallel/cp/plain_attention.h"

namespace shardproof::tests {

struct RingCase {
  Row row;
  ContextLayout kind = ContextLayout::kZigzag;
  Rotation rotation = Rotation::kSendRecv;
  int64_t heads = 6, kv_heads = 2;
  PlainRule rule = {};
  int64_t tile_length = 512;
  int64_t batch = 2;

  std::string describe(int64_t cp) const {
    std::string text = "cp=" + std::to_string(cp) + " " + name_of(kind) + " " + name_of(rotation) +
                       " heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) +
                       (rule.causal ? " causal" : " full") + " window " +
                       std::to_string(rule.window) + " tile " + std::to_string(tile_length) +
                       " lengths";
    for (size_t i = 0; i < row.lengths.size(); ++i) {
      text += " " + std::to_string(row.lengths[i]) + "/" + std::to_string(row.padded[i]);
    }
    return text;
  }
};

// Pads each length to a size that the layout can cut, and a row to one that cp can cut.
Row padded_row(const std::vector<int64_t>& lengths, ContextLayout kind, int64_t cp);

struct Attended {
  at::Tensor out, grad_q, grad_k, grad_v;
};

constexpr int64_t kHeadDim = 4;

// [B, T, heads, D] with different elements, which are not 0 in padding.
at::Tensor ring_tensor(const RingCase& c, int64_t heads, int64_t seed);

// The golden in float64 for inputs that were rounded to `dtype`.
Attended golden_of(const RingCase& c, at::ScalarType dtype = at::kDouble);

// One rank's part of the outputs, in `dtype`.
Attended attend_on_rank(const RingCase& c, Communicator& cp, at::ScalarType dtype = at::kDouble);

using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

std::vector<Attended> attend_on_all(const RingCase& c, int64_t cp, const RunRanks& run,
                                    at::ScalarType dtype = at::kDouble);

// "" if every rank has its part of the golden's output and of all three gradients.
std::string ring_difference(const RingCase& c, int64_t cp, const RunRanks& run,
                            at::ScalarType dtype = at::kDouble, double tolerance = 1e-12);

}  // namespace shardproof::tests
