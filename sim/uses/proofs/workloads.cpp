#include "sim/uses/proofs/workloads.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/training_axes.h"
#include "sim/case/names.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/built_in_rows.h"

namespace shardproof::sim::proofs {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isalnum(c) || c == '_'; });
}

void check_row(const Workload& workload, const WorkloadOption& option) {
  const auto refuse = [&](bool wrong, const std::string& what, const std::string& fix) {
    if (!wrong) return;
    throw_bad_input(fmt::format("option {} of workload {} {}", option.path, workload.name, what),
                    fix);
  };
  const auto has = [&](const std::string& other) {
    return other.empty() || std::ranges::count(workload.options, other, &Option::path) == 1;
  };
  refuse(!has(option.path), "is there twice", "give each a name of its own");
  refuse(!option.choices.empty() && !option.default_value.is_string(),
         "has choices and is not text", "give a usual value of text");
  const auto refuse_axis = [&](const std::string& axis, const std::string& other) {
    const bool known = std::ranges::count(kTrainingAxes, axis, &TrainingAxis::name) == 1;
    refuse(!known, "names the axis '" + axis + "'", "give pp, dp, cp, ulysses or tp");
    refuse(!has(other), "names an option '" + other + "' that is not there", "name one of its own");
  };
  for (const CutOver& cut : option.cuts) refuse_axis(cut.axis, cut.where);
  for (const CountsRanks& of : option.counts) refuse_axis(of.axis, of.named_by);
  for (const NotBeside& beside : option.excludes)
    refuse(!has(beside.other), "names another that is not there", "name one of its own");
}

}  // namespace

Workloads::Workloads(std::initializer_list<Workload> workloads) {
  for (const Workload& workload : workloads) add(workload);
}

void Workloads::add(Workload workload) {
  const std::string name = workload.name;
  if (!is_name(name)) {
    throw_bad_input(fmt::format("'{}' is not a workload's name", name),
                    "use letters, digits and '_'");
  }
  if (is_model_workload(name) || by_name_.count(name) != 0) {
    throw_bad_input(fmt::format("the workload '{}' already exists", name), "choose another name");
  }
  if (!workload.inputs || !workload.plain || !(workload.sharded || workload.sharded_with_notes)) {
    throw_bad_input(fmt::format("workload '{}' lacks inputs, plain or sharded", name),
                    "give all three functions");
  }
  if (std::ranges::count(workload.options, kStridedInputs, &Option::path) == 0) {
    workload.options.push_back(strided_inputs_option());
  }
  for (const WorkloadOption& option : workload.options) check_row(workload, option);
  checked_options({.name = name, .about = "", .options = workload.options},
                  usual_values(workload.options), throw_bad_input);
  by_name_.emplace(name, std::move(workload));
}

const Workload* Workloads::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &found->second;
}

std::vector<KnownWorkload> Workloads::known() const {
  std::vector<KnownWorkload> known;
  for (const auto& [name, workload] : by_name_) {
    known.push_back({.name = name, .about = workload.about, .options = workload.options});
  }
  return known;
}

Workloads built_in_workloads() {
  Workloads all;
  for (Workload workload :
       {column_parallel_workload(), mapping_workload(), row_parallel_workload(),
        cross_entropy_workload(), dropout_workload(), checkpoint_workload(),
        broadcast_data_workload(), logprob_workload(), refit_workload(), stream_init_workload(),
        fused_logprob_workload(), context_logprob_workload(), ulysses_inputs_workload()}) {
    const KnownWorkload& row =
        *std::ranges::find(built_in_rows(), workload.name, &KnownWorkload::name);
    workload.about = row.about;
    workload.options = row.options;
    all.add(std::move(workload));
  }
  return all;
}

}  // namespace shardproof::sim::proofs
