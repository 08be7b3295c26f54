#include "sim/uses/proofs/workloads.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/uses/proofs/built_in.h"
#include "sim/uses/proofs/built_in_rows.h"

namespace shardproof::sim::proofs {
namespace {

bool is_name(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isalnum(c) || c == '_'; });
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
  for (const WorkloadOption& option : workload.options) {
    if (std::ranges::count(workload.options, option.path, &Option::path) == 1) continue;
    throw_bad_input(fmt::format("workload '{}' has two options '{}'", name, option.path),
                    "give each a name of its own");
  }
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
