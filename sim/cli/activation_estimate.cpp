// What a rank makes of one microbatch and keeps for its backward, in bytes, from sizes alone.
#include "sim/cli/activation_estimate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "parallel/cp/ring_attention.h"
#include "sim/rank/case_options.h"
#include "train/held_tokens.h"

namespace shardproof::sim {
namespace {

// What the layers' tensors have in common.
struct Sizes {
  int64_t tokens;          // of one rank in one microbatch
  int64_t row;             // positions whose scores attention has together
  int64_t element, wide;   // bytes of the precision, and of what norms and attention compute in
  int64_t hidden, stream;  // of a token: whole, and as the residual stream is cut
  int64_t mlp, q, kv, heads, vocabulary;  // this rank's share
  bool sequence_parallel;
  bool ring;           // attention over cp: scores are made again in the backward
  int64_t tile;        // of a ring: queries and keys whose scores there are at once
  int64_t bare_norms;  // width of a layer's norms that no linear reads, this rank's share
};

// Norms of heads are read by the rotation, which keeps nothing of them; those of what attention and
// MLP give by the residual sum.
int64_t bare_norms(const Sizes& sizes, const FamilyTraits& family) {
  return (family.qk_norm ? sizes.q + sizes.kv : 0) + (family.output_norms ? 2 * sizes.stream : 0);
}

Sizes sizes_of(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows) {
  const ParallelSpec& parallel = spec.parallel;
  const auto share = [](int64_t count, int64_t parts) {
    return std::max<int64_t>(1, (count + parts - 1) / parts);
  };
  const int64_t head_cuts = parallel.tp * parallel.ulysses;
  const int64_t heads = share(config.num_attention_heads, head_cuts);
  const int64_t kv_heads = share(config.num_key_value_heads, head_cuts);
  const int64_t element = spec.precision == "float64" ? 8 : spec.precision == "float32" ? 4 : 2;
  const int64_t chunks = parallel.cp * (parallel.context_layout == "zigzag" ? 2 : 1);
  const int64_t longest_tile = RingAttentionOptions().tile_length;
  Sizes sizes{.tokens = rows.count * rows.held,
              .row = rows.length,
              .element = element,
              .wide = std::max<int64_t>(element, 4),
              .hidden = config.hidden_size,
              .stream = parallel.sequence_parallel ? share(config.hidden_size, parallel.tp)
                                                   : config.hidden_size,
              .mlp = share(config.intermediate_size, parallel.tp),
              .q = heads * config.head_dim * parallel.ulysses,
              .kv = kv_heads * config.head_dim * parallel.ulysses,
              .heads = heads * parallel.ulysses,
              .vocabulary = share(config.vocab_size, parallel.tp),
              .sequence_parallel = parallel.sequence_parallel,
              .ring = parallel.cp > 1,
              .tile = std::min(longest_tile, share(rows.longest, chunks)),
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

// Plain: q, k and v in the wider type, the weights and their mask. A ring: what it was given, its
// output in the wider type and a number per head. The output is what the next linear reads.
int64_t attention_bytes(const Sizes& sizes) {
  const int64_t qkv = sizes.q + 2 * sizes.kv;
  if (!sizes.ring) {
    return sizes.tokens * ((qkv + sizes.heads * sizes.row) * sizes.wide + sizes.q * sizes.element) +
           sizes.row * sizes.row;
  }
  const int64_t rounded = sizes.element == sizes.wide ? 0 : sizes.q * sizes.element;
  return sizes.tokens * (qkv * sizes.element + (sizes.q + sizes.heads) * sizes.wide + rounded);
}

// What autograd keeps of one layer: norms, attention, and four tensors of the gated MLP.
int64_t layer_bytes(const Sizes& sizes) {
  const int64_t mlp = sizes.tokens * 4 * sizes.mlp * sizes.element;
  const int64_t bare = sizes.tokens * 2 * sizes.bare_norms * sizes.wide;
  return norm_bytes(sizes, 3) + norm_bytes(sizes, 2) + bare + attention_bytes(sizes) + mlp;
}

// What a layer's attention makes in its backward: plain two more tensors of weights; a ring queries
// and gradients by head, blocks of keys on their way, and the scores of two tiles.
int64_t attention_backward(const Sizes& sizes) {
  if (!sizes.ring) return 2 * sizes.tokens * sizes.heads * sizes.row * sizes.wide;
  return sizes.tokens * (4 * sizes.q + 8 * sizes.kv) * sizes.wide +
         2 * sizes.heads * sizes.tile * sizes.tile * sizes.wide;
}

// What comes on top while the backward is at the last layers: the logits twice, or the gradient of
// the head beside attention's backward.
int64_t backward_bytes(const Sizes& sizes) {
  const int64_t logits = 2 * sizes.tokens * sizes.vocabulary * sizes.wide;
  const int64_t head = sizes.vocabulary * sizes.hidden * sizes.element;
  return std::max(logits, head + attention_backward(sizes));
}

int64_t longest_of(const Microbatch& micro) {
  return micro.batch.input_lengths.max().item<int64_t>();
}

}  // namespace

std::vector<MicrobatchRows> microbatch_rows(const CaseSpec& spec, const Batch& batch,
                                            int64_t rank) {
  const Mesh mesh = spec.parallel.mesh();
  const int64_t parts = mesh.size("cp") * mesh.size("ulysses");
  std::vector<MicrobatchRows> out;
  for (const Microbatch& micro : microbatches_of(batch, mesh, rank, train_options(spec))) {
    const int64_t length = micro.input_ids.size(1);
    out.push_back({.count = micro.input_ids.size(0),
                   .length = length,
                   .held = length / parts,
                   .longest = longest_of(micro)});
  }
  return out;
}

int64_t training_bytes(const CaseSpec& spec, const ModelConfig& config,
                       const MicrobatchRows& rows) {
  const Sizes sizes = sizes_of(spec, config, rows);
  return config.num_hidden_layers * layer_bytes(sizes) + norm_bytes(sizes, 1) +
         backward_bytes(sizes);
}

// What one block of the forward has made when it works on its largest tensors, which are those of
// attention (plain: the scores three times) or of the MLP; or the logits twice.
int64_t scoring_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows) {
  const Sizes sizes = sizes_of(spec, config, rows);
  const int64_t made = 6 * sizes.stream + 2 * sizes.q + 2 * sizes.kv;
  const int64_t scores = sizes.tokens * 3 * sizes.heads * sizes.row * sizes.wide;
  const int64_t ring = sizes.tokens * (3 * sizes.q + 4 * sizes.kv) * sizes.wide +
                       2 * sizes.heads * sizes.tile * sizes.tile * sizes.wide;
  const int64_t mlp = sizes.tokens * 4 * sizes.mlp * sizes.element;
  const int64_t logits = sizes.tokens * 2 * sizes.vocabulary * sizes.wide;
  const int64_t attention = sizes.ring ? ring : scores;
  return std::max(sizes.tokens * made * sizes.element + std::max(attention, mlp), logits);
}

}  // namespace shardproof::sim
