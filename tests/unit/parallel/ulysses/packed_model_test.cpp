// A model over packed rows: neighbors of a sequence do not affect it, and tokens that the loss
// drops have no gradient at all.
#include <catch2/catch.hpp>

#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSeqLen = 13, kChanged = 1;  // the sample whose tokens change

struct PackedMesh {
  Mesh mesh;
  bool sequence_parallel = false;
  Rotation rotation = Rotation::kSendRecv;
};

std::vector<PackedMesh> packed_meshes() {
  return {{Mesh()},
          {Mesh::training({.tp = 3}), true},
          {Mesh::training({.cp = 3})},
          {Mesh::training({.cp = 2}), false, Rotation::kAllToAll},
          {Mesh::training({.cp = 3}), false, Rotation::kAllGather},
          {Mesh::training({.ulysses = 2})},
          {Mesh::training({.cp = 2, .tp = 3}), true},
          {Mesh::training({.cp = 2, .ulysses = 2, .tp = 3})}};
}

// A tensor with a token dim, and the token of each position: [b, s, ..] and [b, s].
struct Seen {
  at::Tensor values, tokens;
  at::Tensor at_positions(const at::Tensor& chosen) const {
    return values.flatten(0, 1).index({chosen.flatten()});
  }
};
using SeenByName = std::map<std::string, Seen>;

class TokenKeeper final : public Probe {
 public:
  bool listens(Phase phase) const override { return phase != Phase::kStep; }
  void observe(const Observation& seen) override {
    // Tokens alone do not identify values that sequence parallelism cuts, or addends.
    const bool whole = seen.token_map.defined() && seen.tensor.dim() >= 2 &&
                       seen.tensor.sizes().slice(0, 2) == seen.token_map.sizes();
    if (whole) {
      results[seen.name + " step " + std::to_string(seen.step)] = {seen.tensor.detach().clone(),
                                                                   seen.token_map};
    }
  }
  SeenByName results;
};

Batch packed_batch(bool changed = false) {
  const int64_t vocab_size = small_model().vocab_size;
  Batch batch = seeded_batch({.batch_size = 4,
                              .seq_len = kSeqLen,
                              .lengths = {6, 11, 1, 8},
                              .mask_probability = 0.7,
                              .dropped_samples = {3},
                              .vocab_size = vocab_size,
                              .seed = 6});
  if (changed) batch.input_ids[kChanged].add_(5).remainder_(vocab_size);
  return batch;
}

// What each rank sees in a scoring pass and a step over one packed row.
std::vector<SeenByName> run_packed(const PackedMesh& on, const Batch& batch) {
  std::vector<SeenByName> ranks(static_cast<size_t>(on.mesh.world_size()));
  run_emulated_ranks(on.mesh, [&](MeshComm& comm, int64_t rank) {
    TokenKeeper keeper;
    Trial trial{.mesh = on.mesh,
                .parallel = {.tensor = {.sequence_parallel = on.sequence_parallel},
                             .context = {.rotation = on.rotation}},
                .probe = &keeper};
    trial.options.batching.kind = BatchingKind::kPacked;
    with_trainer(trial, comm, rank, [&](Trainer& trainer) {
      trainer.score(batch);
      trainer.step(batch);
    });
    ranks[static_cast<size_t>(rank)] = keeper.results;
  });
  return ranks;
}

}  // namespace

TEST_CASE("other tokens in a neighbour change not one bit of a sequence, forward or backward",
          "[LP-5][CP-3][US-4]") {
  for (const PackedMesh& on : packed_meshes()) {
    INFO(on.mesh.describe());
    const auto before = run_packed(on, packed_batch()), after = run_packed(on, packed_batch(true));
    for (size_t rank = 0; rank < before.size(); ++rank) {
      CHECK(before[rank].size() >= 12);
      for (const auto& [name, golden] : before[rank]) {
        INFO("rank " << rank << " " << name);
        const Seen& actual = after[rank].at(name);
        REQUIRE(golden.tokens.equal(actual.tokens));
        const at::Tensor changed = golden.tokens.div(kSeqLen, "floor").eq(kChanged);
        const at::Tensor others = changed.logical_not();
        CHECK(golden.at_positions(others).equal(actual.at_positions(others)));
        const at::Tensor own = golden.at_positions(changed);
        const bool forward = name.find(".output") != std::string::npos;
        if (forward && own.numel() > 0) CHECK_FALSE(own.equal(actual.at_positions(changed)));
      }
    }
  }
}

TEST_CASE("what the loss drops sends back exactly 0, and padding attends and sends back exactly 0",
          "[LP-5][CP-3][US-4]") {
  const Batch batch = packed_batch();
  // Position t predicts token t + 1, which the mask may drop; the last position predicts none.
  const at::Tensor next =
      at::constant_pad_nd(batch.loss_mask().narrow(1, 1, kSeqLen - 1), {0, 1}, 0).view({-1});
  for (const PackedMesh& on : packed_meshes()) {
    INFO(on.mesh.describe());
    const bool in_ring = on.mesh.size("cp") > 1;  // elsewhere padding attends to its sequence
    for (const SeenByName& results : run_packed(on, batch)) {
      int64_t dropped = 0, layers = 0, rings = 0;
      for (const auto& [name, seen] : results) {
        INFO(name);
        const at::Tensor padding = seen.tokens.lt(0);
        const bool sent_back = name.find("grad_input") != std::string::npos;
        const bool of_ring = in_ring && name.find(".attention.output") != std::string::npos;
        if (sent_back || of_ring) CHECK(seen.at_positions(padding).eq(0).all().item<bool>());
        layers += sent_back;
        rings += of_ring;
        if (!sent_back || !name.starts_with("lm_head")) continue;
        const at::Tensor counts = next.take(seen.tokens.clamp_min(0)).gt(0);
        const at::Tensor silent = padding.logical_or(counts.logical_not());
        CHECK(seen.at_positions(silent).eq(0).all().item<bool>());
        const at::Tensor loud = seen.at_positions(silent.logical_not());
        if (loud.numel() > 0) CHECK(loud.abs().amax(-1).gt(0).all().item<bool>());
        dropped += silent.sum().item<int64_t>();
      }
      CHECK(layers > 0);
      CHECK((rings > 0) == in_ring);
      CHECK((dropped > 0 || on.sequence_parallel));
    }
  }
}

}  // namespace shardproof::tests
