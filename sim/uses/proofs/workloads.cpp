#include "sim/uses/proofs/workloads.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "sim/case/names.h"
#include "sim/uses/proofs/built_in.h"

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
  if (!workload.options.is_object()) {
    throw_bad_input(fmt::format("the options of workload '{}' are not a map", name),
                    "write {{\"name\", default}}");
  }
  workload.options.emplace(kStridedInputs, false);
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
  return {column_parallel_workload(), mapping_workload(),       row_parallel_workload(),
          cross_entropy_workload(),   dropout_workload(),       checkpoint_workload(),
          broadcast_data_workload(),  logprob_workload(),       refit_workload(),
          stream_init_workload(),     fused_logprob_workload(), context_logprob_workload(),
          ulysses_inputs_workload()};
}

}  // namespace shardproof::sim::proofs
