// A model over packed rows: neighbors of a sequence do not affect it, and tokens that the loss
// drops have no gradient at all.
#include <catch2/catch.hpp>

#include "parallel/registry/styles.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/unit/parallel/ulysses/eight_head_model.h"
#include "train/trainer.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSeqLen = 13, kChanged = 1;  // the sample whose tokens change
const std::vector<int64_t> kLengths = {6, 11, 1, 8};

struct PackedMesh {
  Mesh mesh;
  bool sequence_parallel = false;
};

std::vector<PackedMesh> packed_meshes() {
  return {{Mesh()},
          {Mesh::training({.tp = 2}), true},
          {Mesh::training({.cp = 3})},
          {Mesh::training({.ulysses = 2})},
          {Mesh::training({.cp = 2, .tp = 2}), true},
          {Mesh::training({.cp = 2, .ulysses = 2, .tp = 2})}};
}

// Observations of all tensors with a token dim, and the token of each position: [b, s, ..] and
// [b, s].
struct Seen {
  at::Tensor values, tokens;
};

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
  std::map<std::string, Seen> results;
};

Batch packed_batch(bool changed) {
  Batch batch = seeded_batch({.batch_size = 4,
                              .seq_len = kSeqLen,
                              .lengths = kLengths,
                              .mask_probability = 0.7,
                              .dropped_samples = {3},
                              .vocab_size = eight_head_model().vocab_size,
                              .seed = 6});
  if (changed) batch.input_ids[kChanged].add_(5).remainder_(eight_head_model().vocab_size);
  return batch;
}

// A scoring pass and a step over one packed row (or over unpacked samples).
std::map<std::string, Seen> run_packed(const PackedMesh& on, MeshComm& comm, int64_t rank,
                                       const Batch& batch, bool packed = true) {
  const ModelConfig config = eight_head_model();
  Decoder model(config, seeded_weights(config, 7));
  const ParallelStyles styles =
      make_styles({.tensor = {.sequence_parallel = on.sequence_parallel}});
  styles.apply(model, comm);
  TokenKeeper keeper;
  const RankSetup setup{.mesh = comm.mesh(),
                        .rank = rank,
                        .comm = comm,
                        .probe = keeper,
                        .dtype = at::kDouble,
                        .device = at::kCPU};
  TrainOptions options;
  if (packed) options.batching.kind = BatchingKind::kPacked;
  Trainer trainer(setup, model, styles, options);
  trainer.score(batch);
  trainer.step(batch);
  return keeper.results;
}

std::vector<std::map<std::string, Seen>> on_ranks(const PackedMesh& on, const Batch& batch,
                                                  bool gloo = false) {
  std::vector<std::map<std::string, Seen>> ranks(static_cast<size_t>(on.mesh.world_size()));
  const RankFunction work = [&](MeshComm& comm, int64_t rank) {
    ranks[static_cast<size_t>(rank)] = run_packed(on, comm, rank, batch);
  };
  if (gloo) {
    run_gloo_ranks(on.mesh, work);
  } else {
    run_emulated_ranks(on.mesh, work);
  }
  return ranks;
}

// [b, s] bool: the positions of the sample that changed.
at::Tensor of_changed(const at::Tensor& tokens) {
  return tokens.ge(0).logical_and(tokens.div(kSeqLen, "floor").eq(kChanged));
}

at::Tensor at_positions(const Seen& seen, const at::Tensor& chosen) {
  return seen.values.flatten(0, 1).index({chosen.flatten()});
}

}  // namespace

TEST_CASE("other tokens in a neighbour change not one bit of a sequence, forward or backward",
          "[LP-5][CP-3][US-4]") {
  for (const PackedMesh& on : packed_meshes()) {
    INFO(on.mesh.describe());
    const auto before = on_ranks(on, packed_batch(false)), after = on_ranks(on, packed_batch(true));
    int64_t compared = 0;
    for (size_t rank = 0; rank < before.size(); ++rank) {
      for (const auto& [name, golden] : before[rank]) {
        INFO("rank " << rank << " " << name);
        const Seen& actual = after[rank].at(name);
        REQUIRE(golden.tokens.equal(actual.tokens));
        const at::Tensor changed = of_changed(golden.tokens), others = changed.logical_not();
        CHECK(at_positions(golden, others).equal(at_positions(actual, others)));
        const at::Tensor own = at_positions(golden, changed);
        const bool forward = name.find(".output") != std::string::npos;
        if (forward && own.numel() > 0) CHECK_FALSE(own.equal(at_positions(actual, changed)));
        ++compared;
      }
    }
    CHECK(compared >= 12 * on.mesh.world_size());
  }
}

TEST_CASE("a packed sequence has the logprobs that it has alone", "[LP-5][CP-3][US-4]") {
  const Batch batch = packed_batch(false);
  std::map<std::string, Seen> alone;
  run_emulated_ranks(Mesh(), [&](MeshComm& comm, int64_t rank) {
    alone = run_packed({Mesh()}, comm, rank, batch, /*packed=*/false);
  });
  const at::Tensor golden = alone.at("logprobs step 0").values;
  for (const PackedMesh& on : packed_meshes()) {
    for (const bool gloo : {false, true}) {
      if (gloo && on.mesh.world_size() > 4) continue;
      INFO(on.mesh.describe() << (gloo ? " gloo" : " emulated"));
      for (const auto& results : on_ranks(on, batch, gloo)) {
        const Seen& actual = results.at("logprobs step 0");
        // The actual rows are in the packed row's order, so the golden's are reordered.
        const at::Tensor rows = actual.tokens.select(1, 0).div(kSeqLen, "floor");
        CHECK(difference(golden.index_select(0, rows), actual.values, 1e-12) == "");
      }
    }
  }
}

TEST_CASE("what the loss drops sends back exactly 0, and padding does so in every layer",
          "[LP-5][CP-3][US-4]") {
  const Batch batch = packed_batch(false);
  const at::Tensor mask = batch.loss_mask();
  for (const PackedMesh& on : packed_meshes()) {
    INFO(on.mesh.describe());
    for (const auto& results : on_ranks(on, batch)) {
      int64_t dropped = 0, layers = 0;
      for (const auto& [name, seen] : results) {
        if (name.find("grad_input") == std::string::npos) continue;
        INFO(name);
        const at::Tensor padding = seen.tokens.lt(0);
        CHECK(at_positions(seen, padding).eq(0).all().item<bool>());
        ++layers;
        if (!name.starts_with("lm_head")) continue;
        // Position t predicts token t + 1, which the mask may drop; the last position predicts
        // none.
        const at::Tensor next = at::constant_pad_nd(mask.narrow(1, 1, kSeqLen - 1), {0, 1}, 0);
        const at::Tensor counts = next.view({-1}).take(seen.tokens.clamp_min(0)).gt(0);
        const at::Tensor silent = padding.logical_or(counts.logical_not());
        CHECK(at_positions(seen, silent).eq(0).all().item<bool>());
        const at::Tensor loud = at_positions(seen, silent.logical_not());
        if (loud.numel() > 0) CHECK(loud.abs().amax(-1).gt(0).all().item<bool>());
        dropped += silent.sum().item<int64_t>();
      }
      CHECK(layers > 0);
      CHECK((dropped > 0 || on.sequence_parallel));
    }
  }
}

}  // namespace shardproof::tests
