#include "sim/describe/memory_estimate.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "mesh/layout.h"
#include "parallel/data/shard_axes.h"
#include "parallel/tp/describe.h"
#include "sim/describe/activation_estimate.h"
#include "sim/world/rank/fsdp_options.h"
#include "train/context_cut.h"

namespace shardproof::sim {

namespace {

constexpr int64_t kBucket = 16 << 20;  // bytes that average_gradients sends at a time

// Parameter elements: this rank's shards of all, and whole ones by layer ("" is the root).
struct ParameterCount {
  int64_t shards = 0;
  std::map<std::string, int64_t> whole;
};

// "model.layers.3" for a parameter of that layer, else "".
std::string layer_of(const std::string& parameter) {
  const std::string layers = "model.layers.";
  if (!parameter.starts_with(layers)) return "";
  return parameter.substr(0, parameter.find('.', layers.size()));
}

ParameterCount count_parameters(const CaseSpec& spec, const ModelConfig& config, int64_t rank) {
  const Mesh mesh = spec.parallel.mesh();
  const std::string axis = shard_axes(mesh, fsdp_options(spec.parallel)).shard;
  const TensorParallelOptions options{.sequence_parallel = spec.parallel.sequence_parallel,
                                      .custom_plan = spec.parallel.custom_plan};
  ParameterCount count;
  for (const PlanLine& line : plan_lines(config, mesh, options)) {
    const auto& shape = line.local_shapes[static_cast<size_t>(mesh.coordinate("tp", rank))];
    const auto product = [](const std::vector<int64_t>& sizes) {
      return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>());
    };
    count.whole[layer_of(line.parameter)] += product(shape);
    const Layout layout = axis.empty() ? Layout() : Layout({Cut::chunk(0, axis)});
    count.shards += product(layout.local_shape(shape, mesh, rank));
  }
  return count;
}

int64_t largest_layer(const ParameterCount& count) {
  int64_t largest = 0;
  for (const auto& [layer, elements] : count.whole) {
    if (!layer.empty()) largest = std::max(largest, elements);
  }
  return largest;
}

// Elements of whole parameters held at once: the root, the current layer beside its source buffer,
// and the next one in transit. Without resharding, all of them when the backward begins.
int64_t gathered_elements(const CaseSpec& spec, const ParameterCount& count) {
  int64_t all = 0;
  for (const auto& [layer, elements] : count.whole) all += elements;
  const int64_t largest = largest_layer(count);
  const bool scores = spec.is(ModelWorkload::kLogprobs);
  if (scores) return all + largest;
  if (!spec.parallel.fsdp.reshard_after_forward) return all;
  return count.whole.at("") + largest * (spec.parallel.fsdp.prefetch ? 3 : 2);
}

// Bytes of an element in the precision, and in the optimizer's type.
struct Element {
  int64_t precision, wide;
};

Element element_of(const CaseSpec& spec) {
  const int64_t bytes = spec.precision == Precision::kFloat64   ? 8
                        : spec.precision == Precision::kFloat32 ? 4
                                                                : 2;
  return {.precision = bytes, .wide = std::max<int64_t>(bytes, 4)};
}

// The most bytes at once over all microbatches of a rank. From the second on, `gradients` bytes of
// the first are held too.
int64_t activations_of_rank(const CaseSpec& spec, const ModelConfig& config, const Batch& batch,
                            int64_t rank, int64_t gradients) {
  int64_t most = 0, before = 0;
  for (const MicrobatchRows& rows : microbatch_rows(spec, batch, rank)) {
    if (spec.is(ModelWorkload::kLogprobs)) {
      most = std::max(most, scoring_bytes(spec, config, rows));
      continue;
    }
    most = std::max(most, training_bytes(spec, config, rows) + before);
    before = gradients;
  }
  return most;
}

// The value of the rank with the longest rows; ranks differ along dp alone.
int64_t most_activations(const CaseSpec& spec, const ModelConfig& config, const Batch& batch,
                         int64_t gradients) {
  const Mesh mesh = spec.parallel.mesh();
  int64_t most = 0;
  for (const int64_t rank : mesh.peers_along("dp", 0)) {
    most = std::max(most, activations_of_rank(spec, config, batch, rank, gradients));
  }
  return most;
}

bool is_sharded(const ParallelSpec& parallel) {
  return !shard_axes(parallel.mesh(), fsdp_options(parallel)).shard.empty();
}

int64_t states_per_element(const OptimizerSpec& optimizer) {
  if (optimizer.kind == "AdamW") return 2;
  return optimizer.momentum > 0 ? 1 : 0;
}

}  // namespace

HeldEstimate held_estimate(const CaseSpec& spec, const ModelConfig& config, int64_t rank) {
  const Element element = element_of(spec);
  const int64_t count = count_parameters(spec, config, rank).shards;
  HeldEstimate held{.parameters = count * element.wide};
  if (!is_sharded(spec.parallel) && element.precision != element.wide) {
    held.parameters += count * element.precision;
  }
  if (spec.is(ModelWorkload::kLogprobs)) return held;
  held.gradients = count * element.wide;
  held.optimizer = count * element.wide * states_per_element(spec.optimizer);
  return held;
}

MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config,
                               const Batch& batch) {
  const int64_t gradients = count_parameters(spec, config, 0).shards * element_of(spec).precision;
  return estimate_memory(spec, config, most_activations(spec, config, batch, gradients));
}

MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config,
                               int64_t activations) {
  const Element element = element_of(spec);
  const ParameterCount counted = count_parameters(spec, config, 0);
  const int64_t count = counted.shards;
  const bool sharded = is_sharded(spec.parallel);
  const int64_t token_ranks = token_rank_count(spec.parallel.mesh());
  MemoryEstimate memory;
  memory.leaves = count * (sharded ? element.wide : element.precision);
  if (sharded) memory.gathered = gathered_elements(spec, counted) * element.precision;
  memory.activations = activations;
  if (spec.is(ModelWorkload::kLogprobs)) return memory;
  memory.masters = sharded || element.wide == element.precision ? 0 : count * element.wide;
  memory.gradients = count * element.wide;
  if (sharded) {
    // For one layer: the flat buffer, its copy in transit and the shard of the sum. The next
    // layer's gradients, which backward has made meanwhile, replace its whole parameters.
    const int64_t layer = largest_layer(counted), layers = config.num_hidden_layers;
    memory.bucket = layer * 2 * element.wide + layer * element.wide / token_ranks;
    memory.activations_left = memory.activations * (layers - 1) / layers;
  }
  if (token_ranks > 1 && !sharded) memory.bucket = std::min(memory.gradients, kBucket);
  memory.optimizer = count * element.wide * states_per_element(spec.optimizer);
  memory.optimizer_before_backward = spec.steps > 1;
  return memory;
}

int64_t MemoryEstimate::total() const {
  const int64_t state = optimizer_before_backward ? optimizer : 0;
  const int64_t reducing = activations_left > 0 ? activations_left + bucket : 0;
  const int64_t in_backward = state + std::max(activations, reducing);
  const int64_t on_their_way = state + gradients + bucket;
  return leaves + masters + std::max({gathered + in_backward, on_their_way, gradients + optimizer});
}

}  // namespace shardproof::sim
