#include "sim/world/external/external_place.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <iterator>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

// The names under which each launcher tells a process its place. The first whose rank is set
// counts: torchrun may itself have been started by one of the others.
struct Names {
  const char* launcher;
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;  // as many as there are in all: one host
  const char* step = nullptr;    // set as well: a batch script of Slurm has the rank 0 too
};
constexpr Names kLaunchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     "SLURM_STEP_ID"},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};

bool is_set(const Names& names, const GetVariable& variable) {
  return variable(names.rank) && (names.step == nullptr || variable(names.step));
}

int64_t number(const GetVariable& variable, const std::string& name, int64_t least, int64_t most) {
  const auto text = variable(name);
  if (!text) throw_bad_input(name + " is not set", "start it through the launcher, or set it");
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < least || value > most) {
    throw_bad_input(fmt::format("{}='{}' is not a number from {} to {}", name, *text, least, most),
                    "correct it");
  }
  return value;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "::1";
}

}  // namespace

GetVariable process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  };
}

bool was_launched(const GetVariable& variable) {
  return std::any_of(std::begin(kLaunchers), std::end(kLaunchers),
                     [&](const Names& names) { return is_set(names, variable); });
}

ExternalPlace external_place(const GetVariable& variable) {
  for (const Names& names : kLaunchers) {
    if (!is_set(names, variable)) continue;
    ExternalPlace place;
    place.launcher = names.launcher;
    place.world_size = number(variable, names.world_size, 1, 65536);
    place.rank = number(variable, names.rank, 0, place.world_size - 1);
    if (variable(names.local_rank)) {
      place.local_rank = number(variable, names.local_rank, 0, place.world_size - 1);
    }
    place.master_addr = variable("MASTER_ADDR").value_or("");
    if (place.master_addr.empty() || !variable("MASTER_PORT")) {
      throw_bad_input(
          fmt::format("rank {} was started by {}, but MASTER_ADDR and MASTER_PORT do not say "
                      "where the ranks meet",
                      place.rank, names.launcher),
          "export MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port there)");
    }
    place.master_port = static_cast<int>(number(variable, "MASTER_PORT", 1, 65535));
    if (variable("SHARDPROOF_MEETING_S")) {
      place.meeting_s = number(variable, "SHARDPROOF_MEETING_S", 1, 86400);
      place.waits_for_name = true;
    }
    place.on_one_host = is_loopback(place.master_addr) ||
                        variable(names.local_world_size) == variable(names.world_size);
    place.has_agent = variable("TORCHELASTIC_RUN_ID").has_value();
    place.store_is_hosted = variable("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    place.run_id = variable("TORCHELASTIC_RUN_ID").value_or("run") + "." +
                   variable("TORCHELASTIC_RESTART_COUNT").value_or("0");
    return place;
  }
  throw_bad_input("no launcher says which rank this is",
                  "start it through torchrun, mpirun or srun; without one, use `shardproof run`");
}

}  // namespace shardproof::sim::world
