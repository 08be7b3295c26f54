#include "sim/program/start/start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string_view>

#include "sim/case/names.h"
#include "sim/case/runners.h"
#include "sim/uses/proofs/run_workload.h"
#include "sim/world/nodes/node_entry.h"
#include "sim/world/rank/emulated_world_main.h"
#include "sim/world/rank/launcher_store.h"
#include "sim/world/rank/process_rank_main.h"

namespace shardproof::sim::program {
namespace {

// LibTorch's libraries allocate before main: where they could not, nobody would catch it. This runs
// before their constructors, with plain system calls.
void require_address_space() {
  constexpr rlim_t kOfConstructors = 80 << 20;  // 53 MiB were too few, 63 enough
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  char text[64] = {};  // the first number is that of the mapped pages
  const int file = ::open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  const bool known = file >= 0 && ::read(file, text, sizeof(text) - 1) > 0;
  ::close(file);
  rlim_t pages = 0;
  for (const char* at = text; *at >= '0' && *at <= '9'; ++at) pages = 10 * pages + (*at - '0');
  const rlim_t mapped = pages * static_cast<rlim_t>(::sysconf(_SC_PAGE_SIZE));
  if (!known || mapped + kOfConstructors <= limit.rlim_cur) return;
  char message[200];
  const auto end = fmt::format_to_n(
      message, sizeof(message),
      "shardproof: memory ran out: LibTorch needs at least {} MiB of address space to be loaded, "
      "and its limit is {} MiB (ulimit -v); raise the limit\n",
      (mapped + kOfConstructors) >> 20, limit.rlim_cur >> 20);
  const ssize_t written = ::write(STDERR_FILENO, message, std::min(end.size, sizeof(message)));
  ::_exit(written < 0 ? 5 : 2);
}

// Nor do they load where the current folder is gone.
void require_current_folder() {
  char folder[PATH_MAX];
  if (::getcwd(folder, sizeof(folder)) != nullptr) return;
  constexpr std::string_view kMessage =
      "shardproof: the current folder does not exist any more, or cannot be read; change to "
      "another one\n";
  const ssize_t written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(written < 0 ? 5 : 2);
}

void require_surroundings(int, char**, char**) {
  require_address_space();
  require_current_folder();
}

// One pointer, not an array: gcc aligns arrays to 16 bytes, and where a sanitizer has a pointer
// here too, the linker fills the gap with one that is null, and that one is called as well.
using BeforeConstructors = void (*)(int, char**, char**);
__attribute__((section(".preinit_array"), used)) BeforeConstructors before_constructors =
    require_surroundings;

// With `setup.rank` -1 an emulated world with all ranks, else one rank. Each rank runs `main`.
world::WorldSession make_world(const world::WorldSetup& setup, const world::RankMain& main) {
  if (setup.rank >= 0) {
    const auto rank = std::make_shared<world::ProcessRankMain>(setup, main);
    return {.run = [rank](const CaseSpec& spec, int golden_fd) -> std::vector<RankEnding> {
      return {rank->run(spec, golden_fd)};
    }};
  }
  const auto world =
      std::make_shared<world::EmulatedWorldMain>(setup.world_size, setup.device, setup.hooks, main);
  return {
      .run = [world](const CaseSpec& spec, int golden_fd) { return world->run(spec, golden_fd); },
      .abort = [world](const std::string& why) { world->abort(why); }};
}

}  // namespace

int start_program(int argc, char** argv, const proofs::Workloads& workloads, const Uses& uses) {
  const auto golden = [&workloads](const CaseSpec& spec, golden::Members members, int golden_fd,
                                   const std::string& dump_path) {
    const proofs::Workload* workload = workloads.find(spec.workload);
    return workload == nullptr ? golden::golden_main(spec, members, golden_fd, dump_path)
                               : proofs::run_plain(*workload, spec, golden_fd, dump_path);
  };
  const world::RankMain run_case = [&workloads](const CaseSpec& spec, const world::RankEnv& env) {
    const proofs::Workload* workload = workloads.find(spec.workload);
    return workload == nullptr ? world::rank_main(spec, env)
                               : proofs::run_sharded(*workload, spec, env);
  };
  const world::RankMain rank = uses.rank_main ? uses.rank_main(run_case) : run_case;
  return cli::run_cli(
      argc, argv,
      {.golden_main = golden,
       .make_world = [rank](const world::WorldSetup& setup) { return make_world(setup, rank); },
       .enter_node = world::enter_node,
       .exchange = world::exchange_text},
      workloads.known(), uses.commands);
}

void end_program(int status) {
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(status);
}

}  // namespace shardproof::sim::program
