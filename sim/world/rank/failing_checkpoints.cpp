#include "sim/world/rank/failing_checkpoints.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>

#include "base/error.h"
#include "policy/checkpoint.h"

namespace shardproof::sim::world {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(std::string what, std::string fix) {
  throw_failed(std::move(what), std::move(fix), "threw");
}

void must_fail(const char* stage, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kBadInput) return;
    throw;
  }
  fail(fmt::format("the {} that fails on one rank did not throw on this one", stage),
       "let all ranks agree on the outcome before one goes on");
}

}  // namespace

void fail_to_save(PolicyWorker& worker, MeshComm& comm, const std::string& root) {
  const auto before = latest_checkpoint(root);
  const CheckpointExtras no_tokenizer{.tokenizer_folder = root + "/no_tokenizer"};
  must_fail("save", [&] { save_checkpoint(root, worker.trainer(), comm, no_tokenizer); });
  const auto after = latest_checkpoint(root);
  if (after == before) return;
  fail(fmt::format("a save that failed left {} as the newest checkpoint",
                   after.value_or("no folder")),
       "name a folder as a checkpoint when all of it is written");
}

void fail_to_load(PolicyWorker& worker, MeshComm& comm, const std::string& saved,
                  int64_t at_fault) {
  const std::string damaged = saved + ".damaged";
  if (comm.rank() == 0) {
    fs::remove_all(damaged);
    fs::copy(saved, damaged, fs::copy_options::recursive);
    const fs::path file = fs::path(damaged) / "optimizer.safetensors";
    fs::resize_file(file, fs::file_size(file) - 1);
  }
  comm.world().barrier("damaged checkpoint");
  must_fail("load", [&] { worker.load(comm.rank() == at_fault ? damaged : saved); });
}

}  // namespace shardproof::sim::world
