// Training continues from a checkpoint, on any mesh, as if it had not stopped.
#include "policy/checkpoint.h"

#include <ATen/Parallel.h>
#include <signal.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "tests/unit/policy/dropping_run.h"

namespace shardproof::tests {
namespace {

namespace fs = std::filesystem;

// Of two ranks that shard the parameters.
Trial trial_with(OptimizerKind optimizer) {
  Trial trial{.mesh = Mesh::training({.dp = 2})};
  trial.parallel.data = fsdp();
  trial.options.optimizer.kind = optimizer;
  trial.options.optimizer.momentum = 0.9;
  return trial;
}

// Trains `steps` steps from `load` (or from the seed) and saves to `save`. Returns every parameter.
Trained go_on(Trial trial, const std::string& load, const std::string& save) {
  const int64_t steps = trial.steps;
  trial.steps = 0;
  return train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
    if (!load.empty()) load_checkpoint(load, trainer, comm);
    for (int64_t i = 0; i < steps; ++i) trainer.step(small_batch());
    if (!save.empty()) save_checkpoint(save, trainer, comm);
  });
}

TEST_CASE("what is broken or of another model is refused with a sentence", "[policy][PW-8]") {
  const sim::ScratchFolder root;
  Trial trial = trial_with(OptimizerKind::kAdamW);
  trial.steps = 1;
  CHECK_FALSE(latest_checkpoint(root.path() + "/nowhere"));
  go_on(trial, "", root.path());
  const std::string saved = *latest_checkpoint(root.path());
  Trial other = trial;
  other.config.num_hidden_layers = 2;
  CHECK_THROWS_WITH(go_on(other, saved, ""), Catch::Contains("weights, the model"));
  other = trial;
  other.config.intermediate_size = 16;
  CHECK_THROWS_WITH(go_on(other, saved, ""), Catch::Contains("has another shape"));
  fs::resize_file(fs::path(saved) / "optimizer.safetensors", 100);
  CHECK_THROWS_WITH(go_on(trial, saved, ""), Catch::Contains("has not the"));
  CHECK_THROWS_WITH(go_on(trial, root.path(), ""), Catch::Contains("not a checkpoint of format 1"));
  CHECK_THROWS_WITH(go_on(trial, "", "/proc/nowhere"), Catch::Contains("was not written"));
}

TEST_CASE("a checkpoint of another optimizer is refused; before a step it is nobody's",
          "[policy][PW-8]") {
  const Trial adamw = trial_with(OptimizerKind::kAdamW), sgd = trial_with(OptimizerKind::kSgd);
  Trial plain = sgd;
  plain.options.optimizer.momentum = 0;
  const auto saved_after = [](Trial trial, int64_t steps, const std::string& place) {
    trial.steps = steps;
    go_on(trial, "", place);
    return *latest_checkpoint(place);
  };
  const sim::ScratchFolder root;
  const std::string of_adamw = saved_after(adamw, 1, root.path() + "/adamw");
  const std::string of_sgd = saved_after(sgd, 1, root.path() + "/sgd");
  const std::string of_plain = saved_after(plain, 1, root.path() + "/plain");
  const std::string fresh = saved_after(sgd, 0, root.path() + "/fresh");
  CHECK_THROWS_WITH(go_on(sgd, of_adamw, ""), Catch::Contains("AdamW's, the trainer has SGD"));
  CHECK_THROWS_WITH(go_on(plain, of_adamw, ""), Catch::Contains("AdamW's, the trainer has SGD"));
  CHECK_THROWS_WITH(go_on(adamw, of_sgd, ""), Catch::Contains("SGD's, the trainer has AdamW"));
  CHECK_THROWS_WITH(go_on(adamw, of_plain, ""), Catch::Contains("SGD's, the trainer has AdamW"));
  const Trial muon = trial_with(OptimizerKind::kMuon);
  const std::string of_muon = saved_after(muon, 1, root.path() + "/muon");
  CHECK_THROWS_WITH(go_on(sgd, of_muon, ""), Catch::Contains("Muon's, the trainer has SGD"));
  CHECK_THROWS_WITH(go_on(adamw, of_muon, ""), Catch::Contains("Muon's, the trainer has AdamW"));
  CHECK_THROWS_WITH(go_on(muon, of_adamw, ""), Catch::Contains("AdamW's, the trainer has Muon"));
  CHECK_THROWS_WITH(go_on(muon, of_sgd, ""), Catch::Contains("SGD's, the trainer has Muon"));
  CHECK_NOTHROW(go_on(muon, of_muon, ""));
  CHECK_NOTHROW(go_on(muon, fresh, ""));
  CHECK_NOTHROW(go_on(adamw, fresh, ""));
  CHECK_NOTHROW(go_on(sgd, of_plain, ""));
}

TEST_CASE("a step that is saved again replaces the first, and leftovers of a crash are cleared",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  Trial trial = trial_with(OptimizerKind::kAdamW);
  trial.steps = 1;
  fs::create_directories(root.path() + "/.writing-step_00000009");
  go_on(trial, "", root.path());
  const Trained first = go_on({.mesh = trial.mesh, .options = trial.options, .steps = 0},
                              *latest_checkpoint(root.path()), "");
  trial.options.optimizer.lr = 0.5;
  go_on(trial, "", root.path());
  const Trained second = go_on({.mesh = trial.mesh, .options = trial.options, .steps = 0},
                               *latest_checkpoint(root.path()), "");
  CHECK(difference(first, second, 1e-3) != "");
  int64_t entries = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(root.path())) ++entries;
  CHECK(entries == 1);
}

TEST_CASE("a newest folder that is not whole is passed over for the one before", "[policy][PW-8]") {
  const sim::ScratchFolder root;
  Trial trial{.mesh = Mesh::training({}), .steps = 0};
  train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
    for (int i = 0; i < 2; ++i) {
      trainer.step(small_batch());
      save_checkpoint(root.path(), trainer, comm);
    }
  });
  const fs::path newest = root.path() + "/step_00000002";
  REQUIRE(fs::path(*latest_checkpoint(root.path())) == newest);
  const auto chosen = [&] {
    return fs::path(latest_checkpoint(root.path()).value_or("")).filename();
  };
  const auto bytes = fs::file_size(newest / "state.json");
  for (const char* state : {"{\"format\": \"1\"}", "[1]", ""}) {
    std::ofstream(newest / "state.json") << state;
    CHECK(chosen() == "step_00000001");
    CHECK_THROWS_WITH(go_on(trial, newest.string(), ""),
                      Catch::Contains("not a checkpoint of format"));
  }
  fs::copy_file(root.path() + "/step_00000001/state.json", newest / "state.json",
                fs::copy_options::overwrite_existing);
  CHECK(chosen() == "step_00000002");
  fs::resize_file(newest / "state.json", bytes / 2);
  CHECK(chosen() == "step_00000001");
  fs::remove(newest / "state.json");
  CHECK(chosen() == "step_00000001");
}

// A process that saves one step after another until it is killed.
pid_t start_saver(const std::string& root) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    at::set_num_threads(1);
    const Mesh mesh = Mesh::training({});
    RngTracker rng = seeded_streams(mesh, 0);
    Trial trial{.mesh = mesh};
    trial.options.schedule = some_schedule();
    trial.prepare = [&](Decoder& model, int64_t) { drop_outputs(model, false, rng); };
    MeshComm comm(mesh, 0, nullptr, nullptr);
    with_trainer(trial, comm, 0, [&](Trainer& trainer) {
      if (const auto saved = latest_checkpoint(root)) load_checkpoint(*saved, trainer, comm, &rng);
      while (true) {
        trainer.step(small_batch());
        save_checkpoint(root, trainer, comm, {.rng = &rng});
      }
    });
  } catch (...) {
  }
  ::_exit(1);
}

TEST_CASE(
    "killed at any moment, fifty times, the last checkpoint is whole and the next step is right",
    "[policy][PW-8]") {
  const sim::ScratchFolder root;
  int64_t last = 0;
  for (int kill = 0; kill < 50; ++kill) {
    const pid_t child = start_saver(root.path());
    const auto before = latest_checkpoint(root.path());
    for (int i = 0; kill % 4 == 0 && i < 20000 && latest_checkpoint(root.path()) == before; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // on a machine of any speed
    }
    std::this_thread::sleep_for(std::chrono::microseconds(731 * kill % 11000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    REQUIRE(WIFSIGNALED(status));
    for (const auto& entry : fs::directory_iterator(root.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("step_")) continue;
      const int64_t step = std::stoll(name.substr(5));
      last = std::max(last, step);
      if (step + 3 < last) fs::remove_all(entry.path());
    }
  }
  const auto saved = latest_checkpoint(root.path());
  REQUIRE(saved);
  REQUIRE(last >= 10);
  CHECK(std::stoll(fs::path(*saved).filename().string().substr(5)) == last);
  const Mesh one = Mesh::training({});
  DroppingRun loaded{.trial = {.mesh = one, .steps = 1}, .load = *saved};
  DroppingRun whole{.trial = {.mesh = one, .steps = last + 1}};
  CHECK(difference(whole.run(), loaded.run(), 0) == "");
}

TEST_CASE("the newest checkpoint is that of the largest step, whatever other names there are",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  Trial trial{.mesh = Mesh::training({}), .steps = 1};
  go_on(trial, "", root.path());
  const fs::path saved = root.path() + "/step_00000001";
  const auto newest_with = [&](const char* name) {
    fs::copy(saved, root.path() + "/" + name);
    return fs::path(latest_checkpoint(root.path()).value_or("")).filename().string();
  };
  CHECK(newest_with("step_00000001.bak") == "step_00000001");
  CHECK(newest_with("step_final") == "step_00000001");
  CHECK(newest_with("step_2") == "step_00000001");
  CHECK(newest_with("step_99999998") == "step_99999998");
  CHECK(newest_with("step_100000000") == "step_100000000");  // nine digits
  CHECK(newest_with("step_99999999") == "step_100000000");
}

TEST_CASE("each parameter goes on from the steps that it took, first frozen, then trained",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  Trial trial = trial_with(OptimizerKind::kAdamW);
  const auto steps_of = [&](const std::string& folder) {
    std::pair<int64_t, int64_t> steps;  // of the first parameter and of the last
    train_with(trial, [&](Trainer& trainer, MeshComm& comm) {
      load_checkpoint(folder, trainer, comm);
      if (comm.rank() != 0) return;
      steps = {trainer.states().front().step, trainer.states().back().step};
    });
    return steps;
  };
  trial.steps = 2;
  trial.prepare = [](Decoder& model, int64_t) { model.parameters().front()->trainable = false; };
  go_on(trial, "", root.path());
  const std::string frozen = *latest_checkpoint(root.path());
  CHECK(steps_of(frozen) == std::pair<int64_t, int64_t>{0, 2});

  trial.prepare = {};  // now it is trained
  Trial whole = trial;
  whole.steps = 4;
  const Trained uninterrupted = go_on(whole, frozen, "");
  go_on(trial, frozen, root.path());
  const std::string thawed = *latest_checkpoint(root.path());
  CHECK(fs::path(thawed).filename() == "step_00000004");
  CHECK(steps_of(thawed) == std::pair<int64_t, int64_t>{2, 4});
  CHECK(difference(uninterrupted, go_on(trial, thawed, ""), 0) == "");
}

}  // namespace
}  // namespace shardproof::tests
