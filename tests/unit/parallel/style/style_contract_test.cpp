// What every parallel style promises, and what a style with an axis of its own gets without a
// change elsewhere.
#include <algorithm>
#include <catch2/catch.hpp>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "parallel/ulysses/style.h"
#include "tests/unit/parallel/style/parked_norms.h"
#include "tests/unit/train/small_run.h"

namespace shardproof::tests {
namespace {

std::vector<std::shared_ptr<const ParallelStyle>> all_styles(const ParallelOptions& options = {}) {
  return {std::make_shared<TensorParallel>(options.tensor),
          std::make_shared<ExpertParallel>(options.experts),
          std::make_shared<ParkedNorms>(),
          std::make_shared<ContextParallel>(options.context),
          std::make_shared<Ulysses>(),
          std::make_shared<PipelineParallel>(options.pipeline),
          std::make_shared<DataParallel>(options.data)};
}

Mesh mesh_of(int64_t xp, int64_t dp, int64_t cp, int64_t tp) {
  return Mesh({{"xp", xp}, {"dp", dp}, {"cp", cp}, {"tp", tp}});
}

Trial with_parked_norms(const Mesh& mesh, const ParallelOptions& options = {}) {
  Trial trial{.mesh = mesh, .options = {.micro_batch_size = 1}, .parallel = options};
  trial.styles = ParallelStyles(all_styles(options));
  return trial;
}

// A new model, and the layers that it had.
struct FreshModel {
  Decoder model{small_model(), seeded_weights(small_model(), 3)};
  std::vector<const Layer*> plain = layers();
  std::vector<const Layer*> layers() {
    std::vector<const Layer*> now;
    for (const Slot* slot : model.slots()) now.push_back(slot->layer.get());
    return now;
  }
};

TEST_CASE("a style leaves a mesh on which its axes have one rank as it is", "[parallel][style]") {
  const Mesh mesh = mesh_of(1, 1, 1, 1);
  for (const auto& style : all_styles({.tensor = {.sequence_parallel = true}})) {
    INFO(style->name());
    const auto calls = calls_of_ranks(mesh, [&](MeshComm& comm, int64_t) {
      FreshModel fresh;
      style->place(fresh.model, mesh);
      style->install(fresh.model, comm);
      CHECK(fresh.layers() == fresh.plain);
      for (const Slot* slot : fresh.model.slots()) CHECK(slot->output_layout.replicated());
      for (const ParameterPtr& parameter : fresh.model.parameters()) {
        CHECK(parameter->layout.replicated());
        CHECK(parameter->rule.sum_over.empty());
      }
    });
    CHECK(calls[0].empty());
    TokenCuts cuts;
    style->cut_tokens(cuts, mesh);
    CHECK(cuts.row_multiple == 1);
    CHECK(size_of(mesh, cuts.token_axes(mesh)) == 1);
  }
}

TEST_CASE("a style places without replacing layers, and installs without communication",
          "[parallel][style]") {
  const Mesh mesh({{"pp", 3}, {"xp", 2}, {"dp", 1}, {"cp", 2}, {"ulysses", 1}, {"tp", 3}});
  std::vector<int> kept(static_cast<size_t>(mesh.world_size()));
  const auto calls = calls_of_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    FreshModel fresh;
    for (const auto& style : all_styles()) style->place(fresh.model, mesh);
    kept[static_cast<size_t>(rank)] = fresh.layers() == fresh.plain;
    for (const auto& style : all_styles()) style->install(fresh.model, comm);
  });
  CHECK(kept == std::vector<int>(kept.size(), 1));
  for (const auto& of_rank : calls) CHECK(of_rank.empty());
}

TEST_CASE("styles own different axes, and a mesh axis without a style is refused",
          "[parallel][style]") {
  std::set<std::string> names, axes;
  for (const auto& style : all_styles()) {
    CHECK(names.insert(std::string(style->name())).second);
    for (const std::string& axis : style->axes()) CHECK(axes.insert(axis).second);
  }
  CHECK_THROWS_WITH(ParallelStyles({std::make_shared<Ulysses>(), std::make_shared<Ulysses>()}),
                    Catch::Contains("two styles own the axis ulysses"));
  CHECK_THROWS_WITH(train({.mesh = mesh_of(2, 1, 1, 1)}),
                    Catch::Contains("no parallel style uses the 2 ranks of axis xp"));
}

TEST_CASE("the table of axes has those of all styles, with what their ranks have shares of",
          "[parallel][style]") {
  const Mesh mesh = Mesh::training(same_sizes(2));
  std::map<std::string, Share> shares;
  for (const auto& style : all_styles()) {
    TokenCuts cuts;
    style->cut_tokens(cuts, mesh);
    const std::vector<std::string> tokens = cuts.token_axes(mesh);
    for (const std::string& axis : style->axes()) {
      const bool samples = std::count(cuts.sample_axes.begin(), cuts.sample_axes.end(), axis) > 0;
      const bool positions = !samples && std::count(tokens.begin(), tokens.end(), axis) > 0;
      shares[axis] = samples ? Share::kSamples : positions ? Share::kPositions : Share::kModel;
    }
  }
  shares.erase("xp");  // of the tests alone
  for (const TrainingAxis& axis : kTrainingAxes) {
    INFO(axis.name);
    REQUIRE(shares.contains(axis.name));
    CHECK(shares.at(axis.name) == axis.share);
  }
  CHECK(shares.size() == std::size(kTrainingAxes));
}

TEST_CASE("tokens over the axes of all styles", "[parallel][style]") {
  const Mesh mesh({{"xp", 2}, {"dp", 3}, {"cp", 2}, {"ulysses", 2}, {"tp", 2}});
  const TokenCuts cuts =
      ParallelStyles(all_styles({.tensor = {.sequence_parallel = true}})).token_cuts(mesh);
  CHECK(cuts.token_axes(mesh) == std::vector<std::string>{"xp", "dp", "cp", "ulysses"});
  CHECK(cuts.position_axes(mesh) == std::vector<std::string>{"cp", "ulysses"});
  CHECK(cuts.row_multiple == 2);
  CHECK(size_of(mesh, cuts.sample_axes) == 6);
  CHECK(coordinate_of(mesh, cuts.sample_axes, 42) == 5);  // xp 1, dp 2
}

TEST_CASE("the actions of a step", "[parallel][style]") {
  using Kind = Action::Kind;
  const std::vector<Action> alternating = {
      {Kind::kForward, 0}, {Kind::kBackward, 0}, {Kind::kForward, 1}, {Kind::kBackward, 1}};
  const std::vector<Action> forwards_first = {
      {Kind::kForward, 0}, {Kind::kForward, 1}, {Kind::kBackward, 0}, {Kind::kBackward, 1}};
  CHECK((one_at_a_time(2) == alternating));
  const auto actions = [](const ParallelStyles& styles, bool backward) {
    return styles.actions(Mesh(), /*rank=*/0, /*microbatches=*/2, /*chunks=*/1, backward);
  };
  CHECK((actions(make_styles({}), true) == alternating));
  CHECK((actions(make_styles({}), false) == forwards_only(2)));
  CHECK((actions(ParallelStyles(all_styles()), true) == forwards_first));
  CHECK_THROWS(check_actions({{Kind::kBackward, 0}, {Kind::kForward, 0}}, 1));
  CHECK_THROWS(check_actions({{Kind::kForward, 0}}, 1));
  CHECK_THROWS(check_actions(one_at_a_time(2), 3));
  CHECK_THROWS(check_actions(one_at_a_time(2), 2, /*chunks=*/2));
  CHECK_THROWS(check_actions({{Kind::kForward, 0}, {Kind::kBackward, 0}, {Kind::kForward, 1}}, 2));
}

TEST_CASE("a style of the tests trains on an axis of its own, with all others beside it",
          "[parallel][style]") {
  const Trained expected = train({.mesh = Mesh(), .options = {.micro_batch_size = 1}});
  for (const Mesh& mesh : {mesh_of(2, 1, 1, 1), mesh_of(3, 1, 1, 1), mesh_of(2, 2, 1, 1),
                           mesh_of(2, 1, 2, 1), mesh_of(2, 1, 1, 3), mesh_of(2, 2, 1, 3)}) {
    INFO(mesh.describe());
    CHECK(difference(expected, train(with_parked_norms(mesh)), 1e-10) == "");
  }
  const ParallelOptions sp{.tensor = {.sequence_parallel = true}};
  CHECK(difference(expected, train(with_parked_norms(mesh_of(2, 1, 1, 3), sp)), 1e-10) == "");
  CHECK(difference(expected, train(with_parked_norms(mesh_of(2, 1, 2, 3), sp)), 1e-10) == "");
}

TEST_CASE("the last action that leaves gradients of a chunk completes them", "[parallel][style]") {
  using Kind = Action::Kind;
  using C = Complete;
  CHECK((completed_by(one_at_a_time(2)) ==
         std::vector<C>{C::kNothing, C::kMicrobatch, C::kNothing, C::kStep}));
  CHECK((completed_by(forwards_only(2)) == std::vector<C>{C::kNothing, C::kNothing}));
  // A split backward: only kWeights completes.
  CHECK((completed_by({{Kind::kForward, 0, 0},
                       {Kind::kForward, 0, 1},
                       {Kind::kBackward, 0, 1},
                       {Kind::kWeights, 0, 1},
                       {Kind::kBackward, 0, 0},
                       {Kind::kWeights, 0, 0}}) ==
         std::vector<C>{C::kNothing, C::kNothing, C::kNothing, C::kStep, C::kNothing, C::kStep}));
}

TEST_CASE("without its rule a weight that some ranks do not hold is averaged by no two ranks alike",
          "[parallel][style]") {
  Trial trial = with_parked_norms(mesh_of(2, 2, 1, 1));
  trial.prepare = [](Decoder& model, int64_t) {
    for (const ParameterPtr& parameter : model.parameters()) parameter->rule.mean_over.reset();
  };
  CHECK_THROWS_WITH(train(trial), Catch::Contains("disagree on call"));
}

TEST_CASE("fsdp shards each parameter over the axes of its own mean", "[parallel][style][fsdp]") {
  const Trained expected = train({.mesh = Mesh(), .options = {.micro_batch_size = 1}});
  for (const bool each : {true, false}) {
    FsdpOptions options = fsdp();
    options.reduce_each_microbatch = each;
    for (const Mesh& mesh : {mesh_of(2, 2, 1, 1), mesh_of(2, 3, 1, 1), mesh_of(2, 2, 1, 3)}) {
      INFO(mesh.describe() << (each ? "" : ", reduced once"));
      CHECK(difference(expected, train(with_parked_norms(mesh, {.data = options})), 1e-10) == "");
    }
  }
}

TEST_CASE("stages train beside all other axes", "[parallel][style][pp]") {
  for (const bool tied : {false, true}) {
    Trial plain{.mesh = Mesh(), .options = {.micro_batch_size = 1}};
    plain.config.tie_word_embeddings = tied;
    const Trained expected = train(plain);
    const auto staged = [&](const Mesh& mesh, ParallelOptions options) {
      Trial trial = plain;
      trial.mesh = mesh;
      options.pipeline.split.layout = mesh.size("pp") == 2 ? "Ett|tL" : "";
      trial.parallel = options;
      INFO(mesh.describe() << (tied ? ", tied" : ""));
      CHECK(difference(expected, train(trial), 1e-10) == "");
    };
    const ParallelOptions sp{.tensor = {.sequence_parallel = true}}, sharded{.data = fsdp()};
    staged(Mesh::training({.pp = 2}), {});
    staged(Mesh::training({.pp = 3}), {});
    staged(Mesh::training({.pp = 2, .tp = 3}), sp);
    staged(Mesh::training({.pp = 3, .dp = 2, .cp = 2}), {});
    staged(Mesh::training({.pp = 2, .dp = 2}), sharded);
    staged(Mesh::training({.pp = 3, .dp = 2, .tp = 3}), sharded);
  }
}

// Throws on the thread of a rank, while that is armed, when a slot has run a microbatch.
class Throws : public Probe {
 public:
  using Moments = std::map<std::string, int64_t>;  // slot to microbatch
  explicit Throws(Moments moments) : moments_(std::move(moments)) {}
  bool listens(Phase phase) const override { return armed && phase == Phase::kForward; }
  void observe(const Observation& observation) override {
    const auto found = moments_.find(observation.name);
    if (found == moments_.end() || found->second != observation.microbatch) return;
    throw std::runtime_error("planned");
  }
  static thread_local bool armed;

 private:
  Moments moments_;
};
thread_local bool Throws::armed = false;

TEST_CASE("a step that throws on all stages is as if it had not been", "[parallel][style][pp]") {
  const auto check = [](PipelineSchedule schedule, int64_t chunks, const std::string& layout,
                        const Throws::Moments& moments) {
    INFO(name_of(schedule));
    Throws probe(moments);
    Trial trial{.mesh = Mesh::training({.pp = 2}), .options = {.micro_batch_size = 1}};
    trial.parallel.pipeline = {.schedule = schedule, .chunks = chunks, .split = {.layout = layout}};
    trial.probe = &probe;
    const auto steps = [&](bool throws) {
      return train_with(trial, [&](Trainer& trainer, MeshComm&) {
        trainer.step(small_batch());
        Throws::armed = throws;
        bool thrown = !throws;
        try {
          if (throws) trainer.step(small_batch());
        } catch (const std::runtime_error&) {
          thrown = true;
        }
        SHARDPROOF_ASSERT(thrown, "the step throws on every rank");
        Throws::armed = false;
        trainer.step(small_batch());
      });
    };
    CHECK(difference(steps(false), steps(true), 0) == "");
  };
  // Rank 1 throws behind the backward of microbatch 0, whose weight gradients are still to come.
  check(
      PipelineSchedule::kZb1p, 1, "Ett|tL",
      {{"model.layers.0.input_layernorm.output", 2}, {"model.layers.2.input_layernorm.output", 1}});
  // Rank 1 throws behind receives that are posted before they are read.
  check(PipelineSchedule::kZbV, 2, "Et|t|t|L",
        {{"lm_head.output", 1}, {"model.layers.1.input_layernorm.output", 2}});
}

}  // namespace
}  // namespace shardproof::tests
