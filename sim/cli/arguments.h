// The typed arguments of the command line; parsing reads no files.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/uses/runs/run_settings.h"

namespace shardproof::sim::cli {

// How worlds are made and what is kept, for the commands that run ranks.
struct WorldArguments {
  std::string device = "cpu";
  bool fresh = false;          // a new world for every case
  bool no_cache = false;       // compute goldens; do not use the cache of earlier runs
  bool ignore_limits = false;  // start what this machine is predicted not to hold
};

struct RunArguments : runs::RunSettings {
  std::vector<std::string> paths;     // files and folders; empty: scenarios/
  std::vector<std::string> backends;  // empty: every one that this machine can run
  std::vector<std::string> filters;   // each a part of a case's name or a whole tag; all must match
  std::string only;                   // the exact name of one case
  int64_t shard = 1, shard_count = 1;   // --shard I/N, I from 1
  std::string rerun_failed;             // folder of an earlier run
  std::vector<std::string> taken_over;  // words of its command that count for this one too
  // Of a resumed run: only these cases, each in its world; empty: all.
  std::set<std::pair<std::string, Backend>> names;
  std::optional<int64_t> shuffle;  // seed of the order
  std::optional<int64_t> seed;     // replaces every scenario's seed
  int64_t sample_rows = 0;         // replaces every scenario's, unless 0
  std::string out;                 // run folder; "": runs/<time>
  std::string keep;                // "all", "unexpected" or "", by the number of cases
  int64_t durations = 0;           // lists this many of the slowest cases at the end
  bool force = false;              // `out` may hold files that are not of a run
  std::string resume;              // run: folder of an earlier run to go on with; "": none
  std::string dump;                // run: file for the one case's own full tensors; "": none
  std::string label;               // calls: only those whose label has this text; "": all
  bool no_skips = false;
  bool no_unresolved = false;  // a tensor that cannot be resolved makes the exit status 1
  bool allow_partial = false;  // cases that were not run leave the exit status as it is
  bool shrink = false;         // run: make a case of each way to fail small
  bool all_tags = false;       // also the cases tagged slow or manual
  bool keys = false;           // list: the keys of a scenario file instead of cases
  bool known = false;          // schema: the workloads that are known instead
  std::optional<int64_t>
      world_size;  // cases of another size are skipped: the ranks are there already
  WorldArguments world;
  std::vector<KnownWorkload> workloads;  // of this program, besides train, logprobs and policy
};

struct CheckArguments {
  std::string case_path;       // a case folder; golden also takes a scenario
  std::string result_file;     // judge: of a case
  std::string golden;          // judge: the recorded run or the file to compare with
  bool reference = false;      // judge: `golden` may have several ranks
  bool no_unresolved = false;  // judge: of what --golden judges, as in RunArguments
  bool allow_partial = false;  // judge: the result file may lack tensors
  std::string mesh = "dp=1";
  std::optional<int64_t> ulysses, world_size, dynamic_tokens;
  bool packed = false;
  // The values of flags of the option table (sim/case/option.h): {"--steps", "3"}; "" when absent.
  std::map<std::string, std::string> flags = {};
  std::string flag(const std::string& name) const {
    const auto found = flags.find(name);
    return found == flags.end() ? "" : found->second;
  }
  std::string custom_plan;  // file with {pattern: style}
  std::string dump, out, only;
  bool force = false;  // `out`, `dump` and `save` may replace files of other kinds
  std::string save;    // the trained model as a Hugging Face folder
  WorldArguments world;
  std::vector<KnownWorkload> workloads;  // as in RunArguments
};

// The planted bugs; the arguments go to tests/mutants/run.py.
struct MutantArguments {
  std::string filter;
  int64_t jobs = 1, sample = 0;  // sample 0: all rows
  int64_t seed = 0;
  bool check = false;
  std::optional<std::string> changed = {};  // since this commit; empty: the script chooses one
};

// Drawn cases, and failing ones made smaller. Paths, worlds and outputs are those of RunArguments.
struct ExploreArguments {
  int64_t count = 200;  // fuzz: cases
  double minutes = 0;   // fuzz: goes on for so long, instead of `count`; 0: does not
  int64_t seed = 0;     // fuzz: of the draws
  std::vector<std::string> precisions = {}, workloads = {};  // fuzz: only these; empty: all
  std::vector<std::string> set = {};  // fuzz: "key=value,value", the only values of a key
  std::string corpus = {};            // fuzz: folder of cases that have run already; "": none
  bool coverage = false;              // fuzz: prints how many values and pairs of values have run
  double deadline_s = 60;             // shrink
};

// Hosts and links of a job, or of ranks on this machine.
struct ValidateArguments {
  std::string suite;    // "": the defaults
  int64_t ranks = 0;    // on this machine; 0: those of a launcher
  double minutes = 0;   // 0: the rounds of the suite
  double slow = 0;      // medians; 0: nothing is too slow
  std::string backend;  // "": by the device
  std::string device = "cpu";
};

// Two files of logprobs, or two folders of them.
struct LogprobsArguments {
  std::string a, b;
  std::string json;    // file for the findings; "": none
  bool force = false;  // `json` may replace a file of another kind
};

// The page of a run, or of several that share no case.
struct ReportArguments {
  std::vector<std::string> folders;  // empty: the latest under runs/
  std::string out;                   // the page; "": in the run's folder, of several runs here
  bool everything = false;           // pictures of every case
};

struct Arguments {
  std::string
      command;  // run | list | describe | check | judge | golden | rank | report | doctor | ...
  RunArguments run;               // run, list, lint, describe, calls, rank
  CheckArguments check;           // check, judge, golden
  ReportArguments report;         // report
  std::string folder;             // compare-runs
  std::string other_folder = {};  // compare-runs
  MutantArguments mutants;
  ExploreArguments explore = {};  // fuzz, shrink
  LogprobsArguments logprobs = {};
  ValidateArguments validate = {};
};

// The result of parsing: arguments, or text to print and the exit status.
struct ParsedArguments {
  std::optional<Arguments> arguments;
  int status = 0;
  std::string text;
};

// The commands of a program; empty: all of them.
using CommandNames = std::set<std::string>;
inline bool is_in(const CommandNames& here, const std::string& command) {
  return here.empty() || here.contains(command);
}

// `words` begins with the program's name. The help lists commands that are not here at its end.
ParsedArguments parse_arguments(std::vector<std::string> words, const CommandNames& here = {});
// What a program's main() does: parses, prints the text of parsing, and returns the exit status of
// `command`, of its exception, or 2 when standard output did not take what was printed.
int run_command_line(int argc, char** argv, const std::function<int(Arguments&)>& command,
                     const CommandNames& here = {});
// A script for bash that completes commands, options and files.
std::string bash_completion();

}  // namespace shardproof::sim::cli
