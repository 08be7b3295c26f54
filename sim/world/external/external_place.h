// Where a process stands that torchrun, mpirun or srun started: its rank, and where the ranks meet.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace shardproof::sim::world {

struct ExternalPlace {
  std::string launcher;  // torchrun | mpirun | srun | mpiexec | environment
  int64_t rank = 0;
  int64_t world_size = 1;
  int64_t local_rank = 0;
  std::string master_addr;
  int master_port = 0;
  bool has_agent = false;        // torchrun's agent started it; else a script has set RANK
  bool store_is_hosted = false;  // the launcher holds a store at the master's address
  std::string run_id;            // differs between restarts under one store
  bool on_one_host = false;      // all ranks are on this machine
  std::string secret;            // that all ranks share (shared_secret.h)
  int64_t meeting_s = 120;       // how long the ranks wait for each other (SHARDPROOF_MEETING_S)
  bool waits_for_name = false;   // the variable is set: MASTER_ADDR may be known later only
};

using GetVariable = std::function<std::optional<std::string>(const std::string& name)>;
GetVariable process_environment();

// Whether a launcher started this process as a rank, by its variables.
bool was_launched(const GetVariable& variable);
// Throws Error(kBadInput): no launcher's variables, MASTER_ADDR or MASTER_PORT missing, no numbers.
ExternalPlace external_place(const GetVariable& variable);

}  // namespace shardproof::sim::world
