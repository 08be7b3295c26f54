// A model trained and scored with its sequences cut over cp and ulysses, against the same model on
// one rank: logprobs, loss, norm, every gradient and every parameter after two steps.
#include <catch2/catch.hpp>

#include "parallel/registry/styles.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/unit/parallel/ulysses/eight_head_model.h"
#include "train/trainer.h"

namespace shardproof::tests {
namespace {

using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

struct ModelCase {
  Mesh mesh;
  ContextLayout layout = ContextLayout::kZigzag;
  Rotation rotation = Rotation::kSendRecv;
  bool sequence_parallel = false;
  bool gemma = false;  // windows, two rope bases, a score scale of its own
};

// Keeps the observations that are not cut along tokens.
class Keeper final : public Probe {
 public:
  bool listens(Phase) const override { return true; }
  void observe(const Observation& seen) override {
    const bool kept = seen.name == "logprobs" || seen.name == "loss" || seen.name == "grad_norm" ||
                      seen.name.rfind("grad.", 0) == 0 || seen.name.rfind("param.", 0) == 0;
    if (!kept || !seen.layout.replicated()) return;
    results[seen.name + " " + std::to_string(seen.step)] = seen.tensor.detach().clone();
  }
  NamedResults results;
};

ModelConfig small_config(bool gemma) {
  ModelConfig config = eight_head_model();
  if (!gemma) return config;
  config.family = "gemma3";
  config.sliding_window = 5;
  config.sliding_layers = {true, false};
  config.rope_local_theta = 7;
  config.query_pre_attn_scalar = 11;
  return config;
}

NamedResults run_rank_of(const ModelCase& c, MeshComm& comm, int64_t rank) {
  const ModelConfig config = small_config(c.gemma);
  const Batch batch = seeded_batch({.batch_size = 3,
                                    .seq_len = 13,
                                    .lengths = {13, 1, 6},
                                    .vocab_size = config.vocab_size,
                                    .seed = 5});
  Decoder model(config, seeded_weights(config, 7));
  const ParallelStyles styles =
      make_styles({.tensor = {.sequence_parallel = c.sequence_parallel},
                   .context = {.rotation = c.rotation, .layout = c.layout}});
  styles.apply(model, comm);
  Keeper keeper;
  const RankSetup setup{.mesh = comm.mesh(),
                        .rank = rank,
                        .comm = comm,
                        .probe = keeper,
                        .dtype = at::kDouble,
                        .device = at::kCPU};
  TrainOptions options;
  options.loss.normalization = LossNormalization::kSequence;
  options.optimizer = {.kind = OptimizerKind::kSgd, .lr = 0.1};
  options.max_norm = 0.5;
  Trainer trainer(setup, model, styles, options);
  trainer.score(batch);
  for (int step = 0; step < 2; ++step) trainer.step(batch);
  return keeper.results;
}

std::string wrong_model(const ModelCase& c, const RunRanks& run = run_emulated_ranks) {
  NamedResults golden;
  run_emulated_ranks(Mesh(), [&](MeshComm& comm, int64_t rank) {
    golden = run_rank_of({.mesh = Mesh(), .gemma = c.gemma}, comm, rank);
  });
  std::vector<NamedResults> ranks(static_cast<size_t>(c.mesh.world_size()));
  run(c.mesh, [&](MeshComm& comm, int64_t rank) {
    ranks[static_cast<size_t>(rank)] = run_rank_of(c, comm, rank);
  });
  std::string text;
  for (const NamedResults& actual : ranks) {
    if (c.mesh.size("tp") == 1 && actual.size() != golden.size()) text += "not all was seen\n";
    for (const auto& [name, tensor] : actual) {
      // With dp > 1 a rank's logprobs are those of a part of the batch.
      if (name.starts_with("logprobs") && c.mesh.size("dp") > 1) continue;
      const std::string wrong = difference(golden.at(name), tensor, 1e-11, 1e-3);
      if (!wrong.empty()) text += name + " " + wrong + "\n";
    }
  }
  return text;
}

}  // namespace

TEST_CASE("a model trained with its sequences cut over cp", "[CP-1][CP-2]") {
  for (const int64_t cp : {2, 3, 4}) {
    for (const ContextLayout layout : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
      for (const Rotation rotation : {Rotation::kSendRecv, Rotation::kAllGather}) {
        INFO("cp=" << cp << " " << name_of(layout) << " " << name_of(rotation));
        CHECK(wrong_model(
                  {.mesh = Mesh::training({.cp = cp}), .layout = layout, .rotation = rotation}) ==
              "");
      }
    }
  }
}

TEST_CASE("windows, rope bases and score scale survive the ring and the exchange", "[CP-5][US-4]") {
  CHECK(wrong_model({.mesh = Mesh::training({.cp = 3}), .gemma = true}) == "");
  CHECK(wrong_model({.mesh = Mesh::training({.ulysses = 2}), .gemma = true}) == "");
  CHECK(wrong_model({.mesh = Mesh::training({.cp = 2, .ulysses = 2, .tp = 2}),
                     .sequence_parallel = true,
                     .gemma = true}) == "");
}

TEST_CASE("a model trained with its sequences cut over ulysses, and over both", "[US-4]") {
  for (const int64_t size : {2, 4}) {
    CHECK(wrong_model({.mesh = Mesh::training({.ulysses = size})}) == "");
    CHECK(wrong_model({.mesh = Mesh::training({.cp = 2, .ulysses = size})}) == "");
  }
  CHECK(wrong_model({.mesh = Mesh::training({.cp = 3, .ulysses = 2}),
                     .layout = ContextLayout::kContiguous}) == "");
}

TEST_CASE("with sequence and data parallelism, over Gloo", "[CP-4][US-4]") {
  CHECK(wrong_model({.mesh = Mesh::training({.cp = 2, .tp = 2}), .sequence_parallel = true},
                    run_gloo_ranks) == "");
  CHECK(wrong_model({.mesh = Mesh::training({.dp = 3, .ulysses = 2})}, run_gloo_ranks) == "");
  CHECK(wrong_model({.mesh = Mesh::training({.cp = 2, .ulysses = 2, .tp = 2}),
                     .sequence_parallel = true}) == "");
}

TEST_CASE("heads that ulysses cannot deal are refused before anything is sent", "[US-3]") {
  const auto runs = try_emulated_ranks(
      Mesh::training({.ulysses = 3}),
      [](MeshComm& comm, int64_t r) { run_rank_of({.mesh = comm.mesh()}, comm, r); });
  CHECK_THAT(runs.error_text(1), Catch::Contains("8 query heads do not divide by ulysses=3"));
  const auto with_tp = try_emulated_ranks(
      Mesh::training({.ulysses = 8, .tp = 2}),
      [](MeshComm& comm, int64_t rank) { run_rank_of({.mesh = comm.mesh()}, comm, rank); });
  CHECK_THAT(with_tp.error_text(0), Catch::Contains("4 query heads do not divide by ulysses=8"));
}

}  // namespace shardproof::tests
