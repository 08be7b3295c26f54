// What one rank of a case holds, in bytes, from its sizes alone.
#include "sim/cli/memory_estimate.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "mesh/layout.h"
#include "parallel/fsdp/shard_axes.h"
#include "parallel/tp/describe.h"
#include "sim/rank/fsdp_options.h"

namespace shardproof::sim {

namespace {

constexpr int64_t kBucket = 16 << 20;  // what average_gradients sends at a time

// Elements of parameters: this rank's shards of all, and whole ones by layer ("" the root).
struct ParameterCount {
  int64_t shards = 0;
  std::map<std::string, int64_t> whole;
};

// "model.layers.3" of a parameter of that layer, "" of any other.
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

// Whole parameters at once: the root, the layer at work beside the buffer that it is copied from,
// and the next one on its way; without freeing, all of them.
int64_t gathered_elements(const CaseSpec& spec, const ParameterCount& count) {
  int64_t all = 0;
  for (const auto& [layer, elements] : count.whole) all += elements;
  const int64_t largest = largest_layer(count);
  const bool scores = spec.workload == "logprobs";
  if (scores || !spec.parallel.fsdp.reshard_after_forward) return all + largest;
  return count.whole.at("") + largest * (spec.parallel.fsdp.prefetch ? 3 : 2);
}

int64_t share_of_dp(const CaseSpec& spec) {
  return (spec.data.batch_size + spec.parallel.dp - 1) / spec.parallel.dp;
}

// Samples of the largest microbatch of dp rank 0.
int64_t samples_at_once(const CaseSpec& spec) {
  const int64_t share = share_of_dp(spec);
  return spec.micro_batch_size > 0 ? std::min(share, spec.micro_batch_size) : share;
}

// What the layers' tensors have in common.
struct Sizes {
  int64_t tokens;          // of one rank in one microbatch
  int64_t row;             // tokens that attention sees together
  int64_t element, wide;   // bytes of the precision, and of what norms and attention compute in
  int64_t hidden, stream;  // of a token: whole, and as the residual stream is cut
  int64_t mlp, q, kv, heads, vocabulary;  // this rank's share
  bool sequence_parallel;
  int64_t bare_norms;  // width of a layer's norms that no linear reads, this rank's share
};

// Norms of heads are read by the rotation, which keeps nothing of them; those of what attention and
// MLP give by the residual sum.
int64_t bare_norms(const Sizes& sizes, const FamilyTraits& family) {
  return (family.qk_norm ? sizes.q + sizes.kv : 0) + (family.output_norms ? 2 * sizes.stream : 0);
}

Sizes sizes_of(const CaseSpec& spec, const ModelConfig& config) {
  const int64_t tp = spec.parallel.tp, head_cuts = tp * spec.parallel.ulysses;
  const auto share = [](int64_t count, int64_t parts) {
    return std::max<int64_t>(1, (count + parts - 1) / parts);
  };
  const auto& lengths = spec.data.lengths;
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t row = spec.data.seq_len > 0 ? spec.data.seq_len : longest;
  const int64_t context = spec.parallel.cp * spec.parallel.ulysses;
  const int64_t heads = share(config.num_attention_heads, head_cuts);
  const int64_t kv_heads = share(config.num_key_value_heads, head_cuts);
  const int64_t element = spec.precision == "float64" ? 8 : spec.precision == "float32" ? 4 : 2;
  Sizes sizes{.tokens = samples_at_once(spec) * row / context,
              .row = row,
              .element = element,
              .wide = std::max<int64_t>(element, 4),
              .hidden = config.hidden_size,
              .stream = spec.parallel.sequence_parallel ? share(config.hidden_size, tp)
                                                        : config.hidden_size,
              .mlp = share(config.intermediate_size, tp),
              .q = heads * config.head_dim * spec.parallel.ulysses,
              .kv = kv_heads * config.head_dim * spec.parallel.ulysses,
              .heads = heads * spec.parallel.ulysses,
              .vocabulary = share(config.vocab_size, tp),
              .sequence_parallel = spec.parallel.sequence_parallel,
              .bare_norms = 0};
  sizes.bare_norms = bare_norms(sizes, config.traits());
  return sizes;
}

// A norm keeps its input and the normalised values; what comes out is kept by the linears that read
// it, under sequence parallelism once by each, gathered.
int64_t norm_bytes(const Sizes& sizes, int64_t readers) {
  const int64_t read = sizes.sequence_parallel ? readers * sizes.hidden : sizes.hidden;
  return sizes.tokens * (2 * sizes.stream * sizes.wide + read * sizes.element);
}

// What autograd keeps of one layer: norms, q, k and v in the wider type, the attention weights and
// their mask, its output, and four tensors of the gated MLP.
int64_t layer_bytes(const Sizes& sizes) {
  const int64_t attention =
      sizes.tokens * ((sizes.q + 2 * sizes.kv + sizes.heads * sizes.row) * sizes.wide +
                      sizes.q * sizes.element) +
      sizes.row * sizes.row;
  const int64_t mlp = sizes.tokens * 4 * sizes.mlp * sizes.element;
  const int64_t bare = sizes.tokens * 2 * sizes.bare_norms * sizes.wide;
  return norm_bytes(sizes, 3) + norm_bytes(sizes, 2) + bare + attention + mlp;
}

// What comes on top while the backward is at the last layers: the logits twice, or the gradient of
// the head beside two more tensors of attention weights.
int64_t backward_bytes(const Sizes& sizes) {
  const int64_t logits = 2 * sizes.tokens * sizes.vocabulary * sizes.wide;
  const int64_t head = sizes.vocabulary * sizes.hidden * sizes.element;
  return std::max(logits, head + 2 * sizes.tokens * sizes.heads * sizes.row * sizes.wide);
}

// Without a backward: what one block of the forward has made when it works on its largest tensors,
// which are the scores three times or those of the MLP; or the logits twice.
int64_t forward_bytes(const Sizes& sizes) {
  const int64_t made = 6 * sizes.stream + 2 * sizes.q + 2 * sizes.kv;
  const int64_t scores = 3 * sizes.heads * sizes.row * sizes.wide;
  const int64_t mlp = 4 * sizes.mlp * sizes.element;
  const int64_t logits = 2 * sizes.vocabulary * sizes.wide;
  return sizes.tokens * std::max(made * sizes.element + std::max(scores, mlp), logits);
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
  const Sizes sizes = sizes_of(spec, config);
  const int64_t count = count_parameters(spec, config, rank).shards;
  HeldEstimate held{.parameters = count * sizes.wide};
  if (!is_sharded(spec.parallel) && sizes.element != sizes.wide) {
    held.parameters += count * sizes.element;
  }
  if (spec.workload != "train") return held;
  held.gradients = count * sizes.wide;
  held.optimizer = count * sizes.wide * states_per_element(spec.optimizer);
  return held;
}

MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config) {
  const Sizes sizes = sizes_of(spec, config);
  const ParameterCount counted = count_parameters(spec, config, 0);
  const int64_t count = counted.shards;
  const bool sharded = is_sharded(spec.parallel);
  MemoryEstimate memory;
  memory.leaves = count * (sharded ? sizes.wide : sizes.element);
  if (sharded) memory.gathered = gathered_elements(spec, counted) * sizes.element;
  if (spec.workload == "logprobs") {
    memory.activations = forward_bytes(sizes);
    return memory;
  }
  memory.masters = sharded || sizes.wide == sizes.element ? 0 : count * sizes.wide;
  memory.activations =
      config.num_hidden_layers * layer_bytes(sizes) + norm_bytes(sizes, 1) + backward_bytes(sizes);
  // From the second microbatch on the gradients of the first are there already.
  if (samples_at_once(spec) < share_of_dp(spec)) memory.activations += count * sizes.element;
  memory.gradients = count * sizes.wide;
  if (sharded) {
    // Of one layer: the flat buffer, its copy on the way and the shard of the sum, and the next
    // layer's gradients that backward has made meanwhile.
    const int64_t layer = largest_layer(counted), layers = config.num_hidden_layers;
    const int64_t ranks = std::max<int64_t>(1, spec.parallel.world_size() / spec.parallel.tp);
    memory.bucket = layer * (sizes.element + 2 * sizes.wide) + layer * sizes.wide / ranks;
    memory.activations_left = memory.activations * (layers - 1) / layers;
  }
  if (spec.parallel.dp > 1 && !sharded) memory.bucket = std::min(memory.gradients, kBucket);
  memory.optimizer = count * sizes.wide * states_per_element(spec.optimizer);
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
