// What a case needs at least, held against this machine before anything starts. Every need is a
// lower bound from the sizes of the case, so that nothing is refused that fits.
#pragma once

#include <string>

#include "sim/case/case_spec.h"

namespace shardproof::sim::run {

// Infinite where there is no limit.
struct MachineLimits {
  double memory = 0;         // bytes that are available, or that the control group allows
  double address_space = 0;  // bytes that one process may still map (ulimit -v)
  double threads = 0;        // of all processes
  double descriptors = 0;    // of one process
  double cores = 0;          // that this process may use
};

MachineLimits machine_limits();

// Throw Error(kBadInput) with what is needed, what there is, and the flag that starts the case
// anyway. A case that its ranks refuse needs nothing.
void check_world_limits(const CaseSpec& spec, const MachineLimits& there);
void check_golden_limits(const CaseSpec& spec, const MachineLimits& there);
// The bytes that the golden needs at least; 0 where they are not known.
double golden_need(const CaseSpec& spec);
// The same for the processes themselves, whatever they compute: their memory, and their number on
// each core.
void check_processes(Backend backend, int64_t ranks, const MachineLimits& there);

// More ranks than this on each core take turns for long.
constexpr int64_t kRanksPerCore = 8;
// More rank processes than this on each core are not started. 128 ranks on 2 cores took 74 s for
// the first stage of `validate`, 64 took 20 s.
constexpr int64_t kProcessesPerCore = 128;
// A line that says so, with the numbers; "" for fewer ranks.
std::string crowd_warning(const CaseSpec& spec);

// Throws Error(kBadInput) when the file system of `folder` has less room. `option` is what names
// the folder.
void check_room(const std::string& option, const std::string& folder, double bytes);
// The least that a run writes into its folder for a case, and of a dump and of a saved model.
double report_bytes(const CaseSpec& spec);
double dump_bytes(const CaseSpec& spec);
double save_bytes(const CaseSpec& spec);

}  // namespace shardproof::sim::run
