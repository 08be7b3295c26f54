// The names that a scenario, a case or the command line may use, each list written once.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim {

inline std::vector<std::string> known_losses() { return {"nll", "clipped_pg", "preference"}; }
inline std::vector<std::string> known_optimizers() { return {"AdamW", "SGD"}; }
inline std::vector<std::string> known_schedulers() {
  return {"ConstantLR", "LinearLR", "CosineAnnealingLR", "LambdaLR"};
}
// Those that every program knows: a whole model, trained or scored.
inline std::vector<std::string> known_workloads() { return {"train", "logprobs", "policy"}; }
inline bool is_model_workload(const std::string& name) {
  return name == "train" || name == "logprobs" || name == "policy";
}
// What a policy is asked to do (sim/case/scenario/read_stages.h).
inline std::vector<std::string> known_stages() {
  return {"train", "score", "reference", "refit", "offload", "save", "load", "export", "draw"};
}
inline std::vector<std::string> known_precisions() {
  return {"float64", "float32", "bfloat16", "float16"};
}
inline std::vector<std::string> known_backends() { return {"emulated", "gloo", "nccl"}; }
inline std::vector<std::string> known_devices() { return {"cpu", "cuda"}; }
inline std::vector<std::string> known_data_parallel() { return {"replicate", "fsdp", "hybrid"}; }
inline std::vector<std::string> known_checkpointing() { return {"none", "mlp", "layer"}; }
inline std::vector<std::string> known_norm_counts() { return {"once", "each_of_tp"}; }
inline std::vector<std::string> known_context_layouts() { return {"zigzag", "contiguous"}; }
inline std::vector<std::string> known_context_rotations() {
  return {"send_recv", "all_to_all", "all_gather"};
}
inline std::vector<std::string> known_pack_algorithms() {
  return {"first_fit_decreasing", "balanced"};
}
inline std::vector<std::string> known_verdicts() {
  return {"match", "mismatch", "refused", "failed"};
}
inline std::vector<std::string> known_faults() {
  return {"kill", "hang",      "throw",  "skip",    "delay",
          "drop", "duplicate", "repeat", "corrupt", "stale"};
}
// Who can see first that something is wrong (sim/judge/verdict/fault_outcome.h).
inline std::vector<std::string> known_detectors() {
  return {"values", "replicas", "norm", "digest", "matching", "watchdog", "process", "exception"};
}
inline std::vector<std::string> known_axes() { return {"dp", "cp", "ulysses", "tp"}; }
inline std::vector<std::string> known_collectives() {
  return {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
          "scatter",    "gather",     "send",           "recv",       "barrier"};
}

// "known are AdamW, SGD; did you mean AdamW?" Without the question when no name is near.
std::string known_names(const std::string& word, const std::vector<std::string>& known);

}  // namespace shardproof::sim
