// A checkpoint includes the scheduler, random streams, data position and tokenizer.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "base/read_text.h"
#include "base/text_file.h"
#include "tensor/safetensors.h"
#include "tests/unit/policy/dropping_run.h"
#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

Trial steps_on(const Mesh& mesh, int64_t steps) {
  Trial trial{.mesh = mesh, .steps = steps};
  trial.parallel.data = fsdp();
  return trial;
}

TEST_CASE("with dropout and a schedule the next steps are the uninterrupted run's to the bit",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  const auto run_of = [](int64_t steps) {
    return DroppingRun{.trial = steps_on(Mesh::training({.dp = 2, .tp = 3}), steps), .parts = true};
  };
  DroppingRun saver = run_of(2), again = run_of(2), whole = run_of(4);
  saver.save = root.path();
  saver.run();
  again.load = *latest_checkpoint(root.path());
  const Trained uninterrupted = whole.run();
  CHECK(difference(uninterrupted, again.run(), 0) == "");
  for (const LoadedCheckpoint& loaded : again.loaded) {
    CHECK(loaded.step == 2);
    CHECK(loaded.data_position == 10);
    CHECK(loaded.streams_begun_anew.empty());
  }
  again.restores_streams = false;
  CHECK(difference(uninterrupted, again.run(), 1e-6) != "");
}

TEST_CASE("streams that dp ranks had drawn from differently begin anew on another dp size, alike",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  DroppingRun saver{.trial = steps_on(Mesh::training({.dp = 2}), 2), .save = root.path()};
  saver.run();  // shares of 3 and 2 samples
  const RngState& first = saver.ended[0].at(kDataParallelRng);
  CHECK(first.offset != saver.ended[1].at(kDataParallelRng).offset);
  for (const int64_t dp : {1, 3}) {
    INFO("dp " << dp);
    const Mesh mesh = Mesh::training({.dp = dp});
    DroppingRun resumed{.trial = steps_on(mesh, 0), .load = *latest_checkpoint(root.path())};
    resumed.run();
    for (size_t rank = 0; rank < static_cast<size_t>(dp); ++rank) {
      CHECK(resumed.loaded[rank].streams_begun_anew == std::vector<std::string>{kDataParallelRng});
      const RngState& stream = resumed.ended[rank].at(kDataParallelRng);
      CHECK(stream.offset == 0);
      CHECK(stream.seed != first.seed);
      CHECK(stream.seed < uint64_t{1} << 32);  // all bits that a generator takes
      CHECK(stream.state.equal(resumed.ended[0].at(kDataParallelRng).state));
    }
    DroppingRun once{.trial = steps_on(mesh, 2), .load = resumed.load}, twice = once;
    CHECK(difference(once.run(), twice.run(), 0) == "");
  }
}

TEST_CASE("a saved seed loses the bits that no generator takes", "[policy][PW-8]") {
  const sim::ScratchFolder root;
  DroppingRun saver{.trial = steps_on(Mesh::training({}), 1), .save = root.path()};
  saver.run();
  const std::string saved = *latest_checkpoint(root.path());
  nlohmann::json state = read_json_object(saved + "/state.json");
  nlohmann::json& seeds = state["rng"]["streams"][kDataParallelRng]["seeds"];
  seeds[0] = seeds[0].get<uint64_t>() + (uint64_t{5} << 32);
  write_text_file(saved + "/state.json", state.dump());
  DroppingRun loader{.trial = steps_on(Mesh::training({}), 0), .load = saved};
  loader.run();
  CHECK(loader.ended[0].at(kDataParallelRng).seed == saver.ended[0].at(kDataParallelRng).seed);
}

TEST_CASE("saved bytes that are not a generator's state are refused and change nothing",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  DroppingRun saver{.trial = steps_on(Mesh::training({}), 1), .save = root.path()};
  saver.run();
  const std::string saved = *latest_checkpoint(root.path());
  NamedTensors streams;
  {
    const SafetensorsFile file = SafetensorsFile::open(saved + "/rng.safetensors");
    for (const std::string& name : file.names()) {
      streams.emplace_back(name, file.get(name).clone());
    }
  }
  streams.back().second.zero_();  // set after the others, which are right
  write_safetensors(saved + "/rng.safetensors", streams);
  train_with(steps_on(Mesh::training({}), 0), [&](Trainer& trainer, MeshComm& comm) {
    RngTracker rng = seeded_streams(comm.mesh(), 0);
    const RngStates before = rng.states();
    must_throw(("saved for random stream '" + streams.back().first + "'").c_str(),
               [&] { load_checkpoint(saved, trainer, comm, &rng); });
    for (const auto& [name, stream] : rng.states()) {
      MUST(stream.offset == before.at(name).offset);
      MUST(stream.state.equal(before.at(name).state));
    }
    MUST(trainer.step_count() == 0);
  });
}

TEST_CASE("a worker with a seed keeps random streams, which begin anew with it", "[policy][PW-8]") {
  WorkerTrial trial;
  with_workers(trial, [](PolicyWorker& worker, MeshComm&, int64_t) {
    must_throw("keeps no random streams", [&] { worker.rng(); });
  });
  trial.options.random_seed = 5;
  with_workers(trial, [&](PolicyWorker& worker, MeshComm&, int64_t) {
    const at::Tensor first = worker.rng().uniform({4}, "numbers");
    const std::vector<at::Tensor> masters = worker.trainer().masters();
    worker.begin_with(masters);
    MUST(worker.rng().uniform({4}, "numbers").equal(first));
  });
}

TEST_CASE("without saved streams a tracker is refused, and a trainer alone still loads",
          "[policy][PW-8]") {
  const sim::ScratchFolder root;
  train_with(steps_on(Mesh::training({.dp = 2}), 0), [&](Trainer& trainer, MeshComm& comm) {
    save_checkpoint(root.path(), trainer, comm);
  });
  const std::string saved = *latest_checkpoint(root.path());
  DroppingRun run{.trial = steps_on(Mesh::training({.dp = 2}), 0), .load = saved};
  CHECK_THROWS_WITH(run.run(), Catch::Contains("has no random streams"));
  run.restores_streams = false;
  CHECK_NOTHROW(run.run());
}

TEST_CASE("the tokenizer's files go along, and nothing else of its folder", "[policy][PW-8]") {
  const sim::ScratchFolder root, tokenizer;
  for (const std::string name : {"tokenizer.json", "merges.txt", "model.safetensors"}) {
    write_text_file(tokenizer.path() + "/" + name, "of " + name);
  }
  DroppingRun run{.trial = steps_on(Mesh::training({.dp = 2}), 1),
                  .save = root.path(),
                  .tokenizer = tokenizer.path()};
  run.run();
  const std::string saved = *latest_checkpoint(root.path());
  CHECK(read_text_file(saved + "/merges.txt", 100) == "of merges.txt");
  CHECK(std::filesystem::file_size(saved + "/model.safetensors") > 20);  // the weights
  std::filesystem::resize_file(saved + "/tokenizer.json", 2);
  CHECK_FALSE(latest_checkpoint(root.path()));  // a checkpoint includes these files
  run.tokenizer = root.path() + "/nowhere";
  CHECK_THROWS_WITH(run.run(), Catch::Contains("has no file of a tokenizer"));
}

}  // namespace
}  // namespace shardproof::tests
