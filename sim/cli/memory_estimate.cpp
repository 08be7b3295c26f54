// What one rank of a case holds, in bytes, from its sizes alone.
#include "sim/cli/memory_estimate.h"

#include <algorithm>

#include "parallel/tp/describe.h"

namespace shardproof::sim {

namespace {

int64_t parameter_count(const CaseSpec& spec, const ModelConfig& config) {
  const TensorParallelOptions options{.sequence_parallel = spec.parallel.sequence_parallel,
                                      .custom_plan = spec.parallel.custom_plan};
  int64_t count = 0;
  for (const PlanLine& line : plan_lines(config, spec.parallel.mesh(), options)) {
    int64_t elements = 1;
    for (const int64_t size : line.local_shapes.front()) elements *= size;
    count += elements;
  }
  return count;
}

// Samples of the largest microbatch of dp rank 0.
int64_t samples_at_once(const CaseSpec& spec) {
  const int64_t share = (spec.data.batch_size + spec.parallel.dp - 1) / spec.parallel.dp;
  return spec.micro_batch_size > 0 ? std::min(share, spec.micro_batch_size) : share;
}

// Elements of the tensors that autograd keeps for one microbatch.
int64_t activation_count(const CaseSpec& spec, const ModelConfig& config) {
  const int64_t tp = spec.parallel.tp;
  const int64_t tokens = samples_at_once(spec) * spec.data.seq_len;
  const int64_t stream =
      spec.parallel.sequence_parallel ? config.hidden_size / tp : config.hidden_size;
  const int64_t heads = std::max<int64_t>(1, config.num_attention_heads / tp);
  const int64_t kv_heads = std::max<int64_t>(1, config.num_key_value_heads / tp);
  const int64_t attention = (3 * heads + 2 * kv_heads) * config.head_dim;
  const int64_t scores = 2 * heads * spec.data.seq_len;
  const int64_t mlp = 4 * config.intermediate_size / tp;
  const int64_t layer = 6 * stream + attention + scores + mlp;
  const int64_t logits = 2 * config.vocab_size / tp;
  return tokens * (config.num_hidden_layers * layer + 3 * stream + logits);
}

}  // namespace

MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config) {
  const int64_t element = spec.precision == "float64" ? 8 : spec.precision == "float32" ? 4 : 2;
  const int64_t wide = std::max<int64_t>(element, 4);
  const int64_t count = parameter_count(spec, config);
  MemoryEstimate memory;
  memory.leaves = count * element;
  memory.activations = activation_count(spec, config) * element;
  if (spec.workload == "logprobs") return memory;
  memory.masters = wide == element ? 0 : count * wide;
  memory.gradients = count * element;
  memory.reduced = count * wide;
  const bool adam = spec.optimizer.kind == "AdamW";
  memory.optimizer = count * wide * (adam ? 2 : spec.optimizer.momentum > 0 ? 1 : 0);
  return memory;
}

}  // namespace shardproof::sim
