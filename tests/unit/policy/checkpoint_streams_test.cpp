// A checkpoint includes the scheduler, random streams, data position and tokenizer.
#include <catch2/catch.hpp>
#include <fstream>

#include "base/error.h"
#include "tests/unit/policy/dropping_run.h"
#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

namespace fs = std::filesystem;

Trial steps_on(const Mesh& mesh, int64_t steps) {
  Trial trial{.mesh = mesh, .steps = steps};
  trial.parallel.data = fsdp();
  return trial;
}

Trained uninterrupted(const Mesh& mesh, bool parts) {
  return DroppingRun{.trial = steps_on(mesh, 4), .parts = parts}.run();
}

std::string saved_after_two(const Mesh& mesh, bool parts, const std::string& root) {
  DroppingRun{.trial = steps_on(mesh, 2), .parts = parts, .save = root}.run();
  return *latest_checkpoint(root);
}

TEST_CASE("with dropout and a schedule the next steps are the uninterrupted run's to the bit",
          "[policy][PW-8]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  const ScratchRoot root;
  const std::string saved = saved_after_two(mesh, true, root.path);
  const Trained whole = uninterrupted(mesh, true);
  DroppingRun again{.trial = steps_on(mesh, 2), .parts = true, .load = saved};
  CHECK(difference(whole, again.run(), 0) == "");
  for (const LoadedCheckpoint& loaded : again.loaded) {
    CHECK(loaded.step == 2);
    CHECK(loaded.data_position == 10);
    CHECK(loaded.streams_begun_anew.empty());
  }
  DroppingRun without{
      .trial = steps_on(mesh, 2), .parts = true, .load = saved, .restores_streams = false};
  CHECK(difference(whole, without.run(), 1e-6) != "");
}

TEST_CASE("on another mesh the streams that all ranks had alike go on", "[policy][PW-8]") {
  const Mesh meshes[] = {Mesh::training({.tp = 3}), Mesh::training({})};
  for (const int from : {0, 1}) {
    const ScratchRoot root;
    const Mesh& other = meshes[1 - from];
    const std::string saved = saved_after_two(meshes[from], false, root.path);
    DroppingRun elsewhere{.trial = steps_on(other, 2), .load = saved};
    CHECK(difference(uninterrupted(meshes[from], false), elsewhere.run(), 1e-10) == "");
    const auto& anew = elsewhere.loaded[0].streams_begun_anew;
    // With one rank all streams are equal; with three, each has a different model parallel stream.
    CHECK(anew ==
          (from == 0 ? std::vector<std::string>{kModelParallelRng} : std::vector<std::string>{}));
  }
}

TEST_CASE("a stream that differed over tp alone goes on at the same tp size, else begins anew",
          "[policy][PW-8]") {
  const ScratchRoot root;
  DroppingRun saver{
      .trial = steps_on(Mesh::training({.dp = 2, .tp = 3}), 2), .parts = true, .save = root.path};
  saver.trial.options.micro_batch_size = 1;  // so that dp ranks draw equal numbers
  saver.run();
  const std::string saved = *latest_checkpoint(root.path);
  const auto streams_on = [&](const Mesh& mesh) {
    const auto ranks = static_cast<size_t>(mesh.world_size());
    std::vector<RngStates> states(ranks);
    rethrow_first(try_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
      with_trainer(steps_on(mesh, 0), comm, rank, [&](Trainer& trainer) {
        RngTracker rng;
        load_checkpoint(saved, trainer, comm, &rng);
        states[static_cast<size_t>(rank)] = rng.states();
      });
    }));
    return states;
  };
  const auto before = streams_on(Mesh::training({.dp = 2, .tp = 3}));
  const auto same_tp = streams_on(Mesh::training({.tp = 3}));
  const auto other_tp = streams_on(Mesh::training({}));
  const auto model_stream = [](const RngStates& states) { return states.at(kModelParallelRng); };
  for (size_t tp = 0; tp < 3; ++tp) {
    CHECK(model_stream(same_tp[tp]).state.equal(model_stream(before[tp]).state));
    CHECK(model_stream(same_tp[tp]).offset == model_stream(before[tp]).offset);
  }
  CHECK(model_stream(other_tp[0]).offset == 0);
  for (const RngStates& states : before) {
    CHECK(model_stream(other_tp[0]).seed != model_stream(states).seed);
  }
  CHECK(other_tp[0].at(kDataParallelRng).state.equal(before[0].at(kDataParallelRng).state));
}

TEST_CASE("on another dp size dropout goes on where it stood: the run is one made by hand",
          "[policy][PW-8]") {
  const ScratchRoot root;
  const auto on_dp = [](int64_t dp, int64_t steps) {
    Trial trial = steps_on(Mesh::training({.dp = dp}), steps);
    trial.options.micro_batch_size = 1;  // so that dp ranks draw equal numbers
    trial.options.optimizer.lr = 0.1;
    trial.options.optimizer.kind = OptimizerKind::kSgd;  // has no state of its own
    return trial;
  };
  DroppingRun saver{.trial = on_dp(2, 2), .save = root.path};
  const Trained saved = saver.run();
  CHECK(saver.ended[0].at(kDataParallelRng).offset > 0);
  CHECK(saver.ended[1].at(kDataParallelRng).offset == saver.ended[0].at(kDataParallelRng).offset);
  for (const int64_t dp : {1, 3, 4}) {
    INFO("dp " << dp);
    DroppingRun resumed{.trial = on_dp(dp, 2), .load = *latest_checkpoint(root.path)};
    const Trained went_on = resumed.run();
    for (const LoadedCheckpoint& loaded : resumed.loaded) CHECK(loaded.streams_begun_anew.empty());
    DroppingRun by_hand{.trial = on_dp(dp, 2)};
    by_hand.prepare = [&](Trainer& trainer, RngTracker& rng, int64_t rank) {
      std::vector<at::Tensor> masters;
      for (const ParameterPtr& parameter : trainer.parameters()) {
        masters.push_back(
            cut(saved.parameters.at(parameter->name), parameter->layout, by_hand.trial.mesh, rank));
      }
      trainer.restore(masters, trainer.states(), /*step=*/2);
      rng.set_states(saver.ended[0]);
    };
    CHECK(difference(by_hand.run(), went_on, 0) == "");
    DroppingRun anew = resumed;
    anew.restores_streams = false;
    CHECK(difference(anew.run(), went_on, 1e-6) != "");
  }
}

TEST_CASE("streams that dp ranks had drawn from differently begin anew on another dp size, alike",
          "[policy][PW-8]") {
  const ScratchRoot root;
  DroppingRun saver{.trial = steps_on(Mesh::training({.dp = 2}), 2), .save = root.path};
  saver.run();  // shares of 3 and 2 samples
  const RngState& first = saver.ended[0].at(kDataParallelRng);
  CHECK(first.offset != saver.ended[1].at(kDataParallelRng).offset);
  for (const int64_t dp : {1, 3}) {
    INFO("dp " << dp);
    const Mesh mesh = Mesh::training({.dp = dp});
    DroppingRun resumed{.trial = steps_on(mesh, 0), .load = *latest_checkpoint(root.path)};
    resumed.run();
    for (size_t rank = 0; rank < static_cast<size_t>(dp); ++rank) {
      CHECK(resumed.loaded[rank].streams_begun_anew == std::vector<std::string>{kDataParallelRng});
      const RngState& stream = resumed.ended[rank].at(kDataParallelRng);
      CHECK(stream.offset == 0);
      CHECK(stream.seed != first.seed);
      CHECK(stream.state.equal(resumed.ended[0].at(kDataParallelRng).state));
    }
    DroppingRun once{.trial = steps_on(mesh, 2), .load = resumed.load}, twice = once;
    CHECK(difference(once.run(), twice.run(), 0) == "");
  }
}

TEST_CASE("a worker with a seed keeps random streams, and they go along in its checkpoint",
          "[policy][PW-8]") {
  const ScratchRoot root;
  WorkerTrial trial{.mesh = Mesh::training({.dp = 2, .tp = 3})};
  with_workers(trial, [](PolicyWorker& worker, MeshComm&, int64_t) {
    must_throw("keeps no random streams", [&] { worker.rng(); });
  });
  trial.options.random_seed = 5;
  with_workers(trial, [&](PolicyWorker& worker, MeshComm& comm, int64_t) {
    const auto numbers = [&worker] {
      const auto region = worker.rng().fork();
      return worker.rng().uniform({4}, "numbers");
    };
    const at::Tensor first = numbers();
    const at::Tensor of_tp = comm.along("tp").all_gather(first, 0, "numbers");
    MUST(!of_tp.narrow(0, 0, 4).equal(of_tp.narrow(0, 4, 4)));
    const std::string saved = worker.save(root.path);
    const at::Tensor next = numbers();
    worker.load(saved);
    MUST(numbers().equal(next));
    const std::vector<at::Tensor> masters = worker.trainer().masters();
    worker.begin_with(masters);
    MUST(numbers().equal(first));
  });
}

TEST_CASE("without saved streams a tracker is refused, and a trainer alone still loads",
          "[policy][PW-8]") {
  const ScratchRoot root;
  train_with(steps_on(Mesh::training({.dp = 2}), 0),
             [&](Trainer& trainer, MeshComm& comm) { save_checkpoint(root.path, trainer, comm); });
  const std::string saved = *latest_checkpoint(root.path);
  DroppingRun run{.trial = steps_on(Mesh::training({.dp = 2}), 0), .load = saved};
  CHECK_THROWS_WITH(run.run(), Catch::Contains("has no random streams"));
  run.restores_streams = false;
  CHECK_NOTHROW(run.run());
}

TEST_CASE("the tokenizer's files go along, and nothing else of its folder", "[policy][PW-8]") {
  const ScratchRoot root, tokenizer;
  for (const char* name : {"tokenizer.json", "merges.txt", "model.safetensors"}) {
    std::ofstream(fs::path(tokenizer.path) / name) << "of " << name;
  }
  DroppingRun run{.trial = steps_on(Mesh::training({.dp = 2}), 1),
                  .save = root.path,
                  .tokenizer = tokenizer.path};
  run.run();
  const fs::path saved = *latest_checkpoint(root.path);
  const auto text = [&](const char* name) {
    std::ifstream file(saved / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  CHECK(text("tokenizer.json") == "of tokenizer.json");
  CHECK(text("merges.txt") == "of merges.txt");
  CHECK(text("model.safetensors") != "of model.safetensors");
  fs::resize_file(saved / "merges.txt", 2);
  CHECK_FALSE(latest_checkpoint(root.path));  // a checkpoint includes these files
  run.tokenizer = root.path + "/nowhere";
  CHECK_THROWS_WITH(run.run(), Catch::Contains("has no file of a tokenizer"));
}

TEST_CASE("the loss scale goes along, and a skipped step counts for no optimizer",
          "[policy][PW-8]") {
  const ScratchRoot root;
  Trial trial = steps_on(Mesh::training({.dp = 2}), 3);
  trial.dtype = at::kHalf;
  trial.options.loss_scale = {.enabled = true, .init_scale = 1e9, .backoff_factor = 1e-6};
  bool skipped = false;
  Trial first = trial;
  first.steps = 0;
  train_with(first, [&](Trainer& trainer, MeshComm& comm) {
    const StepMetrics metrics = trainer.step(small_batch());
    if (comm.rank() == 0) skipped = metrics.skipped;
    save_checkpoint(root.path, trainer, comm);
  });
  CHECK(skipped);
  const Trained whole = train(trial);
  const Trained again = train_with(first, [&](Trainer& trainer, MeshComm& comm) {
    load_checkpoint(*latest_checkpoint(root.path), trainer, comm);
    trainer.step(small_batch());
    trainer.step(small_batch());
  });
  CHECK(difference(whole, again, 0) == "");
  CHECK_FALSE(whole.metrics[1].skipped);
}

}  // namespace
}  // namespace shardproof::tests
