#include "sim/program/program.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "sim/case/names.h"
#include "sim/case/runners.h"
#include "sim/cli/cli.h"
#include "sim/proofs/run_workload.h"
#include "sim/run/make_world.h"
#include "sim/world/rank/launcher_store.h"

namespace shardproof::sim {
namespace {

// The workload of a request and its case; null for a whole model.
struct Asked {
  Asked(const std::string& request, const Workloads& workloads) {
    nlohmann::json json = nlohmann::json::parse(request);
    workload = workloads.find(json.at("workload").get<std::string>());
    if (workload != nullptr) spec = case_spec_from_json(json);
  }
  const Workload* workload;
  CaseSpec spec;
};

}  // namespace

int run_program(int argc, char** argv, const Workloads& workloads) {
  const auto golden = [&workloads](const std::string& request, int golden_fd,
                                   const std::string& dump_path) {
    const Asked asked(request, workloads);
    return asked.workload == nullptr ? golden::golden_main(request, golden_fd, dump_path)
                                     : run_plain(*asked.workload, asked.spec, golden_fd, dump_path);
  };
  const auto rank = [&workloads](const std::string& request, const RankEnv& env) {
    const Asked asked(request, workloads);
    return asked.workload == nullptr ? rank_main(request, env)
                                     : run_sharded(*asked.workload, asked.spec, env);
  };
  return run_cli(argc, argv,
                 {.golden_main = golden,
                  .make_world = [rank](WorldSetup setup) { return make_world(setup, rank); },
                  .exchange = exchange_text},
                 workloads.known());
}

void end_program(int status) {
  std::cout.flush();
  std::fflush(nullptr);
  std::quick_exit(status);
}

}  // namespace shardproof::sim
