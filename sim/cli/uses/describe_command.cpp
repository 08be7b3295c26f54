// describe: shows what a scenario would run, and measures its first and last rank alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <map>

#include "base/count_of.h"
#include "base/error.h"
#include "model/config.h"
#include "sim/case/inputs/case_data.h"
#include "sim/case/names.h"
#include "sim/cli/selection.h"
#include "sim/cli/uses/uses_commands.h"
#include "sim/describe/mesh_picture.h"
#include "sim/describe/rank_measurement.h"
#include "sim/describe/stages.h"
#include "sim/describe/token_strips.h"
#include "sim/report/color.h"
#include "sim/world/rank/case_options.h"

namespace shardproof::sim::cli {

namespace {

std::string batch_line(const CaseSpec& spec) {
  if (!spec.data.file.empty()) return "batch      " + spec.data.file + "\n";
  const std::string lengths = fmt::format("{}", fmt::join(spec.data.lengths, ", "));
  const int64_t shares = spec.parallel.ranks(Share::kSamples);
  return fmt::format("batch      [{}, {}] from seed {}{}, {} on rank 0\n", spec.data.batch_size,
                     spec.data.seq_len, spec.seed, lengths.empty() ? "" : ", lengths " + lengths,
                     count_of((spec.data.batch_size + shares - 1) / shares, "sample"));
}

// "in_features 5, bias true": the options of a registered workload.
std::string options_line(const CaseSpec& spec) {
  std::string options;
  for (const auto& [name, value] : spec.options.items()) {
    options += fmt::format("{}{} {}", options.empty() ? "" : ", ", name, value.dump());
  }
  return options.empty() ? "" : "options    " + options + "\n";
}

// "train, score, load (dp=1 tp=2)": the stages of a policy.
std::string policy_line(const CaseSpec& spec) {
  std::string stages;
  for (const StageSpec& stage : spec.stages) {
    stages += (stages.empty() ? "" : ", ") + name_of(stage.kind);
    if (stage.kind == StageKind::kLoad) stages += " (" + stage.parallel.mesh().describe() + ")";
    if (stage.eval_mode) stages += " (eval mode)";
  }
  return fmt::format("workload   policy in {}, {} loss, {}: {}{}\n", spec.precision, spec.loss.kind,
                     spec.optimizer.kind, stages,
                     spec.lives > 1 ? fmt::format(", {} times", spec.lives) : "");
}

std::string work_line(const CaseSpec& spec, const std::string& about) {
  if (!is_model_workload(spec.workload)) {
    return fmt::format("workload   {} in {}, from seed {}{}{}\n{}", spec.workload, spec.precision,
                       spec.seed, about.empty() ? "" : ": ", about, options_line(spec));
  }
  if (spec.is(ModelWorkload::kLogprobs))
    return fmt::format("workload   logprobs in {}\n", spec.precision);
  if (spec.is(ModelWorkload::kPolicy)) return policy_line(spec);
  return fmt::format(
      "workload   {} in {}: {}, {} loss, {} lr {}, clipped to {}\n", spec.workload, spec.precision,
      count_of(spec.steps, "step"), spec.loss.kind, spec.optimizer.kind, spec.optimizer.lr,
      spec.optimizer.max_norm > 0 ? fmt::format("{}", spec.optimizer.max_norm) : "nothing");
}

std::string model_line(const ModelConfig& config) {
  return fmt::format(
      "model      {}: {}, hidden {}, MLP {}, {} of {}, {}, "
      "vocabulary {}{}\n",
      config.family, count_of(config.num_hidden_layers, "layer"), config.hidden_size,
      config.intermediate_size, count_of(config.num_attention_heads, "head"), config.head_dim,
      count_of(config.num_key_value_heads, "kv head"), config.vocab_size,
      config.tie_word_embeddings ? ", tied" : "");
}

// "293.8 KiB"
std::string size_text(int64_t bytes) {
  double size = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (size < 1024) break;
    size /= 1024;
    unit = larger;
  }
  return fmt::format("{:.{}f} {}", size, size == static_cast<double>(bytes) ? 0 : 1, unit);
}

std::string rank_line(int64_t rank, const describe::RankMeasurement& measured) {
  std::string line = fmt::format("  rank {:<5}", rank);
  for (const auto& [name, bytes] : measured.bytes) {
    line += fmt::format("  {} {:>10} ({} B)", name, size_text(bytes), bytes);
  }
  return line + "\n";
}

std::string call_lines(const describe::RankMeasurement& measured) {
  std::string lines = measured.calls.empty() ? "" : "collectives of rank 0 in these steps\n";
  for (const auto& [call, count] : measured.calls) {
    lines += fmt::format("  {:<12} {:<16} {:>8}\n", call.first, call.second, count);
  }
  return lines;
}

// What the first and the last rank take; the last may hold smaller shards.
std::string measured_lines(const CaseSpec& spec, const ModelConfig& config, const Batch& batch) {
  const auto first = describe::measure_rank(spec, config, batch, 0);
  if (!first) {
    return "memory     not measured: it would take minutes; two layers are measured instead only "
           "of a model whose layers are equal, without stages, a plan and frozen parameters\n";
  }
  const int64_t last = spec.parallel.mesh().world_size() - 1;
  return fmt::format("memory, measured in {} of one rank alone{}\n",
                     first->steps == 1 ? "1 step" : "2 steps",
                     first->extended ? " with fewer layers or samples, and extended" : "") +
         rank_line(0, *first) +
         (last > 0 ? rank_line(last, *describe::measure_rank(spec, config, batch, last)) : "") +
         call_lines(*first);
}

// What data parallelism cuts beside the plan.
std::string shard_line(const ParallelSpec& parallel) {
  const std::string axis = world::shard_axes_of(parallel).shard;
  if (axis.empty()) return "";
  return fmt::format("dim 0 of every parameter is cut once more: S(0){}\n", axis);
}

std::string expectation_line(const ExpectSpec& expect) {
  std::string line = "expected   " + name_of(expect.verdict);
  if (!expect.kind.empty()) line += " (" + expect.kind + ")";
  if (!expect.tensor.empty()) line += ", first divergent tensor " + expect.tensor;
  if (!expect.message.empty()) line += ", with '" + expect.message + "' in its message";
  if (!expect.collectives.is_null())
    line += "\ncollectives of each rank   " + expect.collectives.dump();
  return line + "\n";
}

// What is said of a case, but for its name. The tables may be those of an earlier case.
struct Description {
  std::string head, plan, stages, tokens, rest;
  std::string whole() const { return head + plan + stages + tokens + rest; }
};

// Texts that were printed, each with the name of its case: an equal one is not repeated.
class Printed {
 public:
  // The name of the earlier case that has this text; "" where there is none, and from now on it is
  // this case's.
  std::string earlier(const std::string& text, const CaseSpec& spec) {
    const auto [found, is_new] = cases_.try_emplace(text, spec.name);
    return is_new ? "" : found->second;
  }
  // `part`, or "<title> as in <case>".
  std::string once(const std::string& title, const std::string& part, const CaseSpec& spec) {
    const std::string other = part.empty() ? "" : earlier(part, spec);
    return other.empty() ? part : fmt::format("{} as in {}\n", title, other);
  }

 private:
  std::map<std::string, std::string> cases_;
};

// Adds the plan of the case, or why it is refused.
void add_plan(const CaseSpec& spec, Description& description) {
  try {
    const ModelConfig config = load_case_config(spec);
    const Batch batch = load_case_batch(spec, config.vocab_size);
    description.rest = measured_lines(spec, config, batch);
    description.plan =
        "who holds what\n" + describe::plan_table(spec, config) + shard_line(spec.parallel);
    description.stages = describe::stage_tables(spec, config, batch);
    description.tokens = describe::token_strips(spec, batch, report::wants_color());
    description.head += model_line(config) + "\n";
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kRefused) throw;
    description.plan = "";
    description.rest = fmt::format("refused    {}\n", error.what());
  }
}

Description description_of(const CaseSpec& spec, const std::string& about) {
  const bool model = is_model_workload(spec.workload);
  Description description;
  description.head = describe::mesh_picture(spec.parallel.mesh()) + work_line(spec, about) +
                     (model ? batch_line(spec) : "");
  if (model) add_plan(spec, description);
  description.rest +=
      expectation_line(spec.expect) + (spec.skip.empty() ? "" : "skipped    " + spec.skip + "\n");
  return description;
}

std::string about_of(const CaseSpec& spec, const std::vector<KnownWorkload>& workloads) {
  for (const KnownWorkload& workload : workloads) {
    if (workload.name == spec.workload) return workload.about;
  }
  return "";
}

}  // namespace

int describe_command(const RunArguments& given) {
  RunArguments arguments = given;
  if (arguments.backends.empty()) arguments.backends = {"emulated"};
  const Selection selection = select_cases(as_they_ran(arguments));
  if (!selection.empty_share.empty()) {
    std::cout << selection.empty_share << '\n';
    return 0;
  }
  if (selection.cases.empty() && selection.skipped.empty()) {
    throw_bad_input("no case was selected",
                    "loosen --filter, --only or --shard; `shardproof list` shows all");
  }
  Printed wholes, printed;
  bool is_first = true, was_folded = false;
  for (const auto* cases : {&selection.cases, &selection.skipped}) {
    for (const CaseSpec& spec : *cases) {
      const Description text = description_of(spec, about_of(spec, arguments.workloads));
      const std::string other = wholes.earlier(text.whole(), spec);
      const bool folds = !other.empty();
      if (!is_first && !(folds && was_folded)) std::cout << '\n';
      is_first = false;
      was_folded = folds;
      if (folds) {
        std::cout << fmt::format("{}: all as in {}\n", spec.name, other);
        continue;
      }
      std::cout << spec.name << '\n'
                << std::string(spec.name.size(), '-') << '\n'
                << text.head << printed.once("who holds what:", text.plan, spec)
                << (text.plan.empty() ? "" : "\n") << printed.once("stages:", text.stages, spec)
                << printed.once("who holds which token:", text.tokens, spec) << text.rest;
    }
  }
  return 0;
}

}  // namespace shardproof::sim::cli
