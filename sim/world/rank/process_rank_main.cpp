#include "sim/world/rank/process_rank_main.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/freed_memory.h"
#include "comm/cuda_device.h"
#include "comm/gloo_backend.h"
#include "comm/nccl_backend.h"
#include "sim/world/process/page_store.h"
#include "sim/world/process/rank_store.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/member_noise.h"

namespace shardproof::sim::world {

// This rank's groups by name and members, which are made when used and kept. All members have
// run the same cases, so they agree on the groups that exist.
struct ProcessRankMain::Groups {
  BackendFactory make;
  std::map<std::string, c10::intrusive_ptr<c10d::Backend>> open;
  CaseInputsCache inputs;
};

namespace {

// The memory of one case that a rank keeps for the next.
constexpr int64_t kKeptBytes = int64_t{64} << 20;

constexpr std::chrono::milliseconds kTimeout = std::chrono::hours(1);  // a watchdog decides earlier

StorePtr store_of(const StorePlace& place) {
  return place.pages >= 0 ? make_page_store(place.pages) : make_rank_store(place.ask);
}

// Making a group waits for its members as a call does, so it has a line as well.
CallLine making_group(const std::string& name, const std::vector<int64_t>& ranks, int64_t rank) {
  CallLine line;
  line.rank = rank;
  line.group_ranks = std::make_shared<const std::vector<int64_t>>(ranks);
  line.group = group_name(name, ranks);
  line.sequence = -1;
  line.op = Op::kMakeGroup;
  line.label = "before its first call";
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank) line.group_rank = static_cast<int64_t>(i);
  }
  return line;
}

}  // namespace

ProcessRankMain::ProcessRankMain(WorldSetup setup, RankMain main)
    : setup_(std::move(setup)), main_(std::move(main)) {
  keep_freed_memory();
}

ProcessRankMain::~ProcessRankMain() = default;

int64_t ProcessRankMain::own_gpu() const {
  load_cuda();
  const int64_t round = setup_.local_rank / gpu_count();
  if (round > 0 && setup_.backend == Backend::kNccl) {
    char host[256] = "";
    ::gethostname(host, sizeof(host) - 1);
    ::setenv("NCCL_HOSTID", fmt::format("{}-{}", host, round).c_str(), /*overwrite=*/0);
  }
  return setup_.local_rank % gpu_count();
}

RankEnding ProcessRankMain::run(const CaseSpec& spec, int golden_fd) {
  prepare_rank_thread();
  if (draws_own_shards(spec)) {
    return_memory_when_freed();
  } else {
    keep_freed_memory();
  }
  if (!groups_) groups_ = std::make_unique<Groups>();
  RankEnv env;
  env.rank = setup_.rank;
  env.world_size = setup_.world_size;
  env.device = name_of(setup_.device);
  if (setup_.device == DeviceKind::kCuda) env.device = fmt::format("cuda:{}", own_gpu());
  env.golden_fd = golden_fd;
  env.inputs = &groups_->inputs;
  env.make_backend = [this](const std::string& name, const std::vector<int64_t>& ranks) {
    auto& backend = groups_->open[fmt::format("{}[{}]", name, fmt::join(ranks, ","))];
    if (backend) return backend;
    const auto& on_call = setup_.hooks.on_call;
    if (on_call) on_call(setup_.rank, making_group(name, ranks, setup_.rank));
    if (!groups_->make) {
      const StorePtr store = store_of(setup_.store);
      groups_->make =
          setup_.backend == Backend::kNccl
              ? nccl_factory(store, setup_.rank,
                             {.timeout = kTimeout, .device_index = static_cast<int>(own_gpu())})
              : gloo_factory(store, setup_.rank, {.timeout = kTimeout, .host = setup_.listen_host});
    }
    backend = groups_->make(name, ranks);
    return backend;
  };
  const RankEnding ending = run_rank(main_, spec, std::move(env), setup_.hooks);
  return_freed_memory(kKeptBytes);
  return ending;
}

}  // namespace shardproof::sim::world
