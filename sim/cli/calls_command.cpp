// calls: lists every collective call of each rank of one case, which runs in the emulated world.
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/cli/commands.h"
#include "sim/cli/selection.h"
#include "sim/judge/verdict/call_labels.h"
#include "sim/judge/verdict/endings.h"
#include "sim/world/calls/spoil.h"

namespace shardproof::sim::cli {

namespace {

struct MadeCall {
  Call call;
  int64_t number = 0;  // of its rank, from 0
  int64_t step = 0;    // 0: before the first step, or in a case without steps
};
using CallsByRank = std::vector<std::vector<MadeCall>>;

// Throws the error with which the case ended.
void require_finished(const std::vector<RankEnding>& endings, int64_t mesh_ranks) {
  const std::optional<judge::EndingVerdict> end = judge::judge_endings(endings, mesh_ranks);
  if (!end) return;
  const ErrorKind kind = end->verdict == Verdict::kRefused    ? ErrorKind::kRefused
                         : end->verdict == Verdict::kBadInput ? ErrorKind::kBadInput
                                                              : ErrorKind::kFailed;
  throw Error(
      {.kind = kind, .what = "the case did not run to its end: " + end->message, .fix = ""});
}

// Without planted faults: they are to be placed at what the case calls without them.
CallsByRank calls_of(CaseSpec spec, const world::WorkerFunctions& functions) {
  spec.judged = false;
  spec.record_activations = false;
  spec.faults.clear();
  const int64_t world_size = spec.parallel.world_size();
  CallsByRank calls(static_cast<size_t>(world_size));
  std::vector<int64_t> steps(calls.size(), 0);
  world::WorldSetup setup{.world_size = world_size};
  setup.hooks.on_step = [&](int64_t rank, int64_t step) {
    steps[static_cast<size_t>(rank)] = step;
  };
  setup.hooks.on_call = [&](int64_t rank, const world::CallLine& line) {
    auto& own = calls[static_cast<size_t>(rank)];  // of this thread alone
    const auto number = static_cast<int64_t>(own.size());
    if (!line.waiting) own.push_back({line, number, steps[static_cast<size_t>(rank)]});
  };
  require_finished(functions.make_world(setup).run(spec, -1), spec.parallel.ranks());
  return calls;
}

void keep_label(const std::string& label, const CaseSpec& spec, CallsByRank& calls) {
  std::vector<std::string> labels;
  size_t left = 0;
  for (auto& own : calls) {
    for (const MadeCall& made : own) labels.push_back(made.call.label);
    std::erase_if(own,
                  [&](const MadeCall& made) { return !world::occurs_in(made.call.label, label); });
    left += own.size();
  }
  if (left > 0) return;
  throw_bad_input(fmt::format("no call of {} has a label with '{}'", spec.name, label),
                  labels.empty() ? "it makes no calls"
                                 : "its labels are " + judge::nearest_labels(label, labels));
}

std::string axis_of(const Call& call) { return call.group.substr(0, call.group.find('[')); }

struct Total {
  int64_t calls = 0, bytes = 0;
};

std::map<std::pair<std::string, std::string>, Total> totals_of(const CallsByRank& calls) {
  std::map<std::pair<std::string, std::string>, Total> totals;
  for (const auto& own : calls) {
    for (const MadeCall& made : own) {
      Total& total = totals[{axis_of(made.call), name_of(made.call.op)}];
      ++total.calls;
      total.bytes += made.call.bytes;
    }
  }
  return totals;
}

void print_text(const CaseSpec& spec, const CallsByRank& calls) {
  std::cout << fmt::format("{}: {}\n", spec.name, spec.parallel.mesh().describe());
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    std::cout << fmt::format("rank {}: {}\n", rank, count_of(std::ssize(calls[rank]), "call"));
    for (const MadeCall& made : calls[rank]) {
      std::cout << fmt::format("  {:>5}  step {}  {}, {} bytes\n", made.number, made.step,
                               describe(made.call), made.call.bytes);
    }
  }
  std::cout << fmt::format("\nof all ranks\n  {:<12} {:<16} {:>8} {:>16}\n", "axis", "op", "calls",
                           "bytes");
  for (const auto& [key, total] : totals_of(calls)) {
    std::cout << fmt::format("  {:<12} {:<16} {:>8} {:>16}\n", key.first, key.second, total.calls,
                             total.bytes);
  }
}

// The phase that a label ends with; "" when it names none.
std::string phase_of(const std::string& label) {
  for (const char* phase : {"forward", "backward"}) {
    if (label.ends_with(phase)) return phase;
  }
  return "";
}

void print_json(const CallsByRank& calls) {
  using Json = nlohmann::ordered_json;
  const auto print = [](const Json& line) {
    std::cout << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  };
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    for (const MadeCall& made : calls[rank]) {
      const Call& call = made.call;
      print({{"rank", rank},
             {"call", made.number},
             {"step", made.step},
             {"phase", phase_of(call.label)},
             {"op", name_of(call.op)},
             {"reduce_op", reduce_text(call)},
             {"axis", axis_of(call)},
             {"ranks", *call.group_ranks},
             {"dtype", call.dtype},
             {"shape", call.shape},
             {"bytes", call.bytes},
             {"asynchronous", call.asynchronous},
             {"label", call.label}});
    }
  }
  for (const auto& [key, total] : totals_of(calls)) {
    print(
        {{"axis", key.first}, {"op", key.second}, {"calls", total.calls}, {"bytes", total.bytes}});
  }
}

}  // namespace

int calls_command(const RunArguments& given, const world::WorkerFunctions& functions) {
  RunArguments arguments = given;
  arguments.backends = {"emulated"};
  const CaseSpec spec = select_one_case(arguments);
  CallsByRank calls = calls_of(spec, functions);
  if (!arguments.label.empty()) keep_label(arguments.label, spec, calls);
  if (arguments.json_lines) {
    print_json(calls);
  } else {
    print_text(spec, calls);
  }
  return 0;
}

}  // namespace shardproof::sim::cli
