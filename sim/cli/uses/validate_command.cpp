// validate: checks the hosts and links of a job, or of --ranks processes on this machine.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "base/failure.h"
#include "base/text_file.h"
#include "sim/case/names.h"
#include "sim/case/scenario/scenario.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/uses/uses_commands.h"
#include "sim/cli/version.h"
#include "sim/lint/case_reader.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/uses/validate/outputs.h"
#include "sim/uses/validate/validate_rank.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/external/shared_secret.h"
#include "sim/world/nodes/node_network.h"

namespace shardproof::sim::cli {

namespace {

namespace fs = std::filesystem;

// A small Llama on a mesh that the ranks fill: tp 2 where they are even.
CaseSpec default_case(int64_t ranks, const WorldChoice& world) {
  const int64_t tp = ranks % 2 == 0 ? 2 : 1, dp = ranks / tp;
  std::vector<int64_t> lengths;
  for (int64_t sample = 0; sample < 2 * dp; ++sample) lengths.push_back(5 + 3 * (sample % 4));
  const std::string text = fmt::format(
      "name: validate/llama\nworkload: train\nmodel: {{family: llama, vocab_size: 96, "
      "hidden_size: 48, intermediate_size: 80, num_attention_heads: 8, num_key_value_heads: 4, "
      "num_hidden_layers: 2}}\ndata: {{lengths: [{}], sequence_length: 16}}\n"
      "run: {{steps: 2, max_grad_norm: 0.5}}\nseed: 11\n"
      "parallel: {{data_parallel_size: {}, tensor_parallel_size: {}}}\n",
      fmt::join(lengths, ", "), dp, tp);
  return parse_scenario_text("validate/llama.yaml", text, world).cases.front();
}

// Those of the suite that so many ranks run.
std::vector<CaseSpec> training_cases(const validate::Suite& suite, int64_t ranks,
                                     const WorldChoice& world) {
  if (!suite.has(validate::Stage::kTraining)) return {};
  if (suite.scenarios.empty()) return {default_case(ranks, world)};
  std::vector<CaseSpec> cases;
  for (const std::string& file : lint::find_scenario_files(suite.scenarios)) {
    for (CaseSpec& spec : parse_scenario(file, world).cases) {
      const bool plain = spec.is(ModelWorkload::kTrain) || spec.is(ModelWorkload::kLogprobs);
      const bool expected = spec.expect.verdict == Verdict::kMatch && spec.faults.empty();
      if (spec.parallel.world_size() != ranks || !plain || !expected || !spec.skip.empty())
        continue;
      cases.push_back(std::move(spec));
    }
  }
  return cases;
}

void require_cases(const validate::Suite& suite, const std::vector<CaseSpec>& cases,
                   int64_t ranks) {
  if (suite.has(validate::Stage::kTraining) && cases.empty()) {
    throw_bad_input(fmt::format("no case of training.scenarios trains or scores a model on {} "
                                "ranks and expects a match",
                                ranks),
                    "name one that does, or leave training.scenarios out");
  }
}

// Nodes are network namespaces that are made for the ranks: hosts of their own.
void check_nodes(validate::Suite& suite, int64_t ranks, const WorldChoice& choice, bool launched) {
  if (suite.nodes == 0) return;
  const auto refuse = [&](const std::string& what, const std::string& fix) {
    throw_bad_input(fmt::format("world.nodes of {}: {}", suite.file, what), fix);
  };
  if (launched) refuse("a launcher's hosts are the nodes", "leave it out, or give --ranks");
  if (choice.backend != Backend::kGloo) {
    refuse(fmt::format("--backend {} has none", choice.backend), "take --backend gloo");
  }
  if (ranks % suite.nodes != 0) {
    refuse(fmt::format("{} nodes do not divide {} ranks", suite.nodes, ranks),
           "take as many ranks on each node");
  }
  const int64_t each = ranks / suite.nodes;
  if (suite.ranks_per_host != 0 && suite.ranks_per_host != each) {
    refuse(fmt::format("hosts.ranks_per_host is {}, and a node has {} ranks", suite.ranks_per_host,
                       each),
           "leave out hosts.ranks_per_host");
  }
  suite.ranks_per_host = each;
  CaseSpec spec;
  spec.world.backend = choice.backend;
  spec.world.ranks_per_node = each;
  for (const validate::PlantedFault& fault : suite.faults) {
    if (fault.kind == validate::PlantedKind::kLag)
      spec.faults.emplace_back().kind = FaultKind::kLag;
  }
  const std::string why = world::why_no_nodes(spec);
  if (!why.empty()) refuse(why, "leave it out");
}

class ValidateCommand {
 public:
  ValidateCommand(const Arguments& arguments, const CommandLine& command)
      : arguments_(arguments.validate), run_arguments_(arguments.run), command_(command) {
    settings_.device = enum_of<DeviceKind>(arguments_.device);
    settings_.backend = backend();
    settings_.minutes = arguments_.minutes;
    settings_.slow_factor = arguments_.slow;
    settings_.use_cache = !run_arguments_.world.no_cache;
  }

  int local(const world::WorkerFunctions& functions) {
    require_can_run(settings_.backend, settings_.device);
    world::WorldPool pool(functions);
    pool.say_waits();
    read(arguments_.ranks, /*launched=*/false);
    check_limits();
    settings_.on_this_machine = true;
    return run(pool, std::cout);
  }

  // One process of a launcher's. Rank 0's judges; the others serve and leave with its status.
  int launched(const world::WorkerFunctions& functions) {
    world::ExternalPlace place = world::external_place(world::process_environment());
    place.secret = world::shared_secret(place, world::process_environment());
    if (settings_.backend == Backend::kEmulated) {
      throw_bad_input("emulated cannot run here",
                      "ranks of a launcher are processes; use --backend gloo or nccl");
    }
    require_can_run(settings_.backend, settings_.device);
    return run_on_external_ranks(place, settings_.backend, settings_.device, functions,
                                 [&](world::WorldPool& pool) {
                                   read(place.world_size, /*launched=*/true);
                                   return run(pool, std::cout);
                                 });
  }

 private:
  Backend backend() const {
    if (!arguments_.backend.empty()) return enum_of<Backend>(arguments_.backend);
    return settings_.device == DeviceKind::kCuda ? Backend::kNccl : Backend::kGloo;
  }

  void read(int64_t ranks, bool launched) {
    if (!arguments_.suite.empty()) suite_ = validate::read_suite(arguments_.suite);
    settings_.world_size = ranks;
    const WorldChoice world{.backend = settings_.backend,
                            .device = settings_.device,
                            .workloads = run_arguments_.workloads};
    check_nodes(suite_, ranks, world, launched);
    if (arguments_.slow > 0 && !suite_.has(validate::Stage::kTimes)) {
      throw_bad_input(
          fmt::format("--slow {:g} looks at the times of links, and {} has no stage times",
                      arguments_.slow, arguments_.suite),
          "add it to `stages`");
    }
    settings_.cases = [this, world](int64_t count) { return training_cases(suite_, count, world); };
    require_cases(suite_, settings_.cases(ranks), ranks);
  }

  // The ranks are processes of this machine, also where no case is trained.
  void check_limits() const {
    CaseSpec spec;
    spec.workload = validate::kValidateWorkload;
    spec.parallel.dp = settings_.world_size;
    spec.world.backend = settings_.backend;
    spec.world.device = settings_.device;
    spec.data = {};
    std::vector<CaseSpec> cases = {spec};
    for (CaseSpec& one : settings_.cases(settings_.world_size)) cases.push_back(std::move(one));
    if (const auto limits = limits_for(run_arguments_.world)) {
      run::check_processes(settings_.backend, settings_.world_size, *limits);
      for (const CaseSpec& one : cases) run::check_world_limits(one, *limits);
      for (const CaseSpec& one : cases) run::check_golden_limits(one, *limits);
    }
    std::cerr << run::crowd_warning(spec);
  }

  int run(world::WorldPool& pool, std::ostream& out) {
    std::vector<fs::path> inputs(suite_.scenarios.begin(), suite_.scenarios.end());
    if (!suite_.file.empty()) inputs.emplace_back(suite_.file);
    const report::JobSummary job_summary;
    const std::string folder = results_folder(run_arguments_.out, inputs, run_arguments_.force);
    const validate::ValidateRun about{.command = command_.text,
                                      .version = version_text(),
                                      .started = report::utc_now(),
                                      .suite = suite_.file,
                                      .settings = settings_};
    const validate::ValidationResult result =
        validate::validate(pool, suite_, settings_, [&](const auto& stage, const auto& findings) {
          out << validate::stage_text(stage, findings) << std::flush;
        });
    write_text_file((fs::path(folder) / "validation.json").string(),
                    validate::validation_json(result, about)
                            .dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
                        "\n");
    write_text_file((fs::path(folder) / "junit.xml").string(),
                    validate::validation_junit(result, about));
    job_summary.add(validate::validation_section(result, folder));
    out << validate::verdict_text(result) << fmt::format("all of it: {}/validation.json\n", folder);
    return result.exit_status;
  }

  const ValidateArguments& arguments_;
  const RunArguments& run_arguments_;
  const CommandLine& command_;
  validate::Suite suite_;
  validate::ValidateSettings settings_;
};

// The place that a launcher gave this process; nothing where its variables give none. It does not
// matter where the ranks would meet (MASTER_ADDR).
std::optional<world::ExternalPlace> place_of_launcher(const world::GetVariable& variable) {
  const auto without_meeting = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "MASTER_ADDR") return "localhost";
    if (name == "MASTER_PORT") return "1";
    if (name == "SHARDPROOF_MEETING_S") return std::nullopt;
    return variable(name);
  };
  try {
    return world::external_place(without_meeting);
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Each rank of a launcher's would start --ranks of its own. A single process may: srun --pty, say.
void refuse_ranks_of_ranks(const world::GetVariable& variable) {
  const auto place = place_of_launcher(variable);
  if (!place || place->world_size == 1) return;
  throw_bad_input(fmt::format("validate --ranks starts ranks of its own, but this process is "
                              "rank {} of {} of {}",
                              place->rank, place->world_size, place->launcher),
                  "leave out --ranks");
}

}  // namespace

int validate_command(const Arguments& arguments, const CommandLine& command,
                     const world::WorkerFunctions& functions) {
  const auto variable = world::process_environment();
  if (arguments.validate.ranks == 0 && !world::was_launched(variable)) {
    throw_bad_input("no launcher says which rank this is",
                    "start validate through torchrun, mpirun or srun on every host, or give "
                    "--ranks N for N ranks on this machine");
  }
  if (arguments.validate.ranks > 0) refuse_ranks_of_ranks(variable);
  ValidateCommand validate(arguments, command);
  return arguments.validate.ranks > 0 ? validate.local(functions) : validate.launched(functions);
}

}  // namespace shardproof::sim::cli
