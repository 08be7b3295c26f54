// A case as JSON, the form in which it travels between processes.
#include "sim/case/case_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "sim/case/policy_stages.h"

namespace shardproof::sim {

using nlohmann::json;

// Every field by name, so that both directions are one list.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossSpec, kind, eps, beta, normalization, temperature)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SchedulerSpec, kind, factor, start_factor, end_factor,
                                   total_iters, t_max, eta_min, lr_lambda)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OptimizerSpec, kind, lr, beta1, beta2, eps, weight_decay,
                                   momentum, dampening, nesterov, max_norm, norm_type, schedulers,
                                   milestones)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossScaleSpec, init_scale, growth_factor, backoff_factor,
                                   growth_interval)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataSpec, file, batch_size, seq_len, lengths, mask_probability,
                                   mask_weights, masked_not_finite, dropped_samples, uneven,
                                   huge_advantage_sample, huge_advantage_factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(BatchingSpec, kind, tokens, logprob_tokens, algorithm,
                                   length_round)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FsdpSpec, replicate_size, reshard_after_forward, prefetch,
                                   reduce_each_microbatch, cpu_offload)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ParallelSpec, dp, cp, ulysses, tp, sequence_parallel,
                                   data_parallel, context_layout, context_rotation, fsdp,
                                   activation_checkpointing, grad_norm_counts, custom_plan,
                                   inference_tp)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StageSpec, kind, global_batch_size, micro_batch_size, eval_mode,
                                   fails, max_file_bytes, parallel)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(LinkSpec, latency_us, gb_per_s, per_node)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StragglerSpec, rank, compute, links)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(WorldSpec, backend, device, hang_s, deadline_s,
                                                strict, ranks_per_node, in_node, inter_node,
                                                compute, compute_factor, op_us, gflop_per_s,
                                                stragglers, digests)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FaultSpec, kind, rank, label, at_call, op, axis, step, seconds,
                                   side, bit, element)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ExpectSpec, verdict, kind, tensor, collectives, detector)

namespace {

// The fields of CaseSpec itself; to_json(const CaseSpec&) is taken by the public function's
// signature.
#define SHARDPROOF_CASE_FIELDS(DO)                                                                 \
  DO(name)                                                                                         \
  DO(file)                                                                                         \
  DO(line)                                                                                         \
  DO(workload)                                                                                     \
  DO(options)                                                                                      \
  DO(model)                                                                                        \
  DO(weights_folder) DO(expected_file) DO(precision) DO(seed) DO(steps) DO(stages) DO(refit_bytes) \
      DO(colocated) DO(lives) DO(micro_batch_size) DO(judged) DO(record_activations) DO(data)      \
          DO(batching) DO(loss) DO(optimizer) DO(loss_scale) DO(noise_std) DO(parallel) DO(world)  \
              DO(faults) DO(expect) DO(tags) DO(skip) DO(dump_file) DO(save_folder)                \
                  DO(save_file_bytes) DO(backends)

// "path:bytes:modification time in ns" of one file, "path:absent" when there is none.
std::string file_identity(const std::filesystem::path& path) {
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return path.string() + ":absent";
  const auto modified = std::filesystem::last_write_time(path, error).time_since_epoch();
  const auto modified_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(modified).count();
  return fmt::format("{}:{}:{}", path.string(), bytes, modified_ns);
}

// Identities of the weight files of a folder, in the order of their names.
std::vector<std::string> weights_identity(const std::string& folder) {
  std::vector<std::string> identities;
  if (folder.empty()) return identities;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model")) identities.push_back(file_identity(entry.path()));
  }
  std::sort(identities.begin(), identities.end());
  return identities;
}

// What is asked of the policy, wherever and in whatever microbatches. Draws are of each tp rank.
json golden_stages(const CaseSpec& spec) {
  json stages = json::array();
  const bool draws = draws_numbers(spec);
  for (const StageSpec& stage : spec.stages) {
    stages.push_back({{"kind", stage.kind},
                      {"global_batch_size", stage.global_batch_size},
                      {"eval_mode", stage.eval_mode},
                      {"fails", stage.fails},
                      {"tp", draws ? stage.parallel.tp : 0}});
  }
  return stages;
}

json golden_data(const DataSpec& data) {
  if (!data.file.empty()) return file_identity(data.file);
  json generated = data;
  generated.erase("uneven");
  return generated;
}

}  // namespace

json to_json(const CaseSpec& spec) {
  json out = json::object();
#define SHARDPROOF_WRITE(field) out[#field] = spec.field;
  SHARDPROOF_CASE_FIELDS(SHARDPROOF_WRITE)
#undef SHARDPROOF_WRITE
  return out;
}

CaseSpec case_spec_from_json(const json& in) {
  CaseSpec spec;
#define SHARDPROOF_READ(field) spec.field = in.at(#field).get<decltype(spec.field)>();
  SHARDPROOF_CASE_FIELDS(SHARDPROOF_READ)
#undef SHARDPROOF_READ
  return spec;
}

std::string golden_key(const CaseSpec& spec) {
  const json key = {
      {"workload", spec.workload},
      {"options", spec.options},
      {"model", spec.model},
      {"weights_folder", spec.weights_folder},
      {"weights", weights_identity(spec.weights_folder)},
      {"precision", spec.precision},
      {"seed", spec.seed},
      {"steps", spec.steps},
      {"stages", golden_stages(spec)},
      {"lives", spec.lives},
      {"record_activations", spec.record_activations},
      {"data", golden_data(spec.data)},
      {"loss", spec.loss},
      {"loss_scale", spec.loss_scale},
      {"noise_std", spec.noise_std},
      {"optimizer", spec.optimizer},
  };
  return key.dump();
}

}  // namespace shardproof::sim
