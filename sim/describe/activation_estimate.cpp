#include "sim/describe/activation_estimate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "model/decoder.h"
#include "parallel/cp/ring_attention.h"
#include "sim/world/rank/case_options.h"
#include "train/held_tokens.h"

namespace shardproof::sim {
namespace {

// The sizes that tensors of the layers share.
struct Sizes {
  int64_t tokens;          // of one rank in one microbatch
  int64_t row;             // positions of a row that attention sees
  int64_t element, wide;   // bytes of the precision, and of the type of norms and attention
  int64_t hidden, stream;  // of a token: whole, and in the cut residual stream
  int64_t mlp, q, kv, heads, vocabulary;  // this rank's share
  bool sequence_parallel;
  bool ring;           // attention over cp: the backward recomputes scores
  int64_t tile;        // in a ring: queries and keys with scores at a time
  int64_t bare_norms;  // width of a layer's norms that no linear reads, this rank's share
};

// The rotation reads norms of heads and keeps nothing of them; the residual sum reads the output
// norms of attention and MLP.
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
  const int64_t element = spec.precision == Precision::kFloat64   ? 8
                          : spec.precision == Precision::kFloat32 ? 4
                                                                  : 2;
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

// A norm keeps its input, and the linears keep its output. Under sequence parallelism each of them
// keeps it once, gathered.
int64_t norm_bytes(const Sizes& sizes, int64_t readers) {
  const int64_t read = sizes.sequence_parallel ? readers * sizes.hidden : sizes.hidden;
  return sizes.tokens * (sizes.stream + read) * sizes.element;
}

// Plain attention keeps q, k and v. A ring also keeps its output in the wider type and a number per
// head. The next linear keeps the output.
int64_t attention_bytes(const Sizes& sizes) {
  const int64_t given = sizes.q + 2 * sizes.kv;
  if (!sizes.ring) return sizes.tokens * (given + sizes.q) * sizes.element;
  const int64_t rounded = sizes.element == sizes.wide ? 0 : sizes.q * sizes.element;
  return sizes.tokens * (given * sizes.element + (sizes.q + sizes.heads) * sizes.wide + rounded);
}

// The MLP's norm and three tensors of its gate.
int64_t mlp_bytes(const Sizes& sizes) {
  return norm_bytes(sizes, 2) + sizes.tokens * 3 * sizes.mlp * sizes.element;
}

// Bytes that autograd keeps of one layer.
int64_t layer_bytes(const Sizes& sizes) {
  const int64_t bare = sizes.tokens * sizes.bare_norms * sizes.element;
  return norm_bytes(sizes, 3) + attention_bytes(sizes) + bare + mlp_bytes(sizes);
}

// Scores that plain attention holds at once: a block of queries with all keys up to its end.
int64_t block_scores(const Sizes& sizes) {
  const int64_t heads = sizes.tokens * sizes.heads / sizes.row;  // of all rows
  const int64_t queries =
      std::min(sizes.row, attention_block_rows(1, sizes.row, heads, sizes.wide));
  const int64_t in_full_blocks = sizes.row / queries * queries;
  const int64_t last = (sizes.row - in_full_blocks) * sizes.row;
  return heads * std::max(queries * in_full_blocks, last) * sizes.wide;
}

// Bytes of a layer's attention in its backward: queries and gradients by head, keys and values with
// their gradients. Plain attention adds the weights of a block three times. A ring adds blocks of
// keys in transit and the scores of two tiles.
int64_t attention_backward(const Sizes& sizes) {
  if (!sizes.ring) {
    return sizes.tokens * (2 * sizes.q + 4 * sizes.kv) * sizes.wide + 3 * block_scores(sizes);
  }
  return sizes.tokens * (4 * sizes.q + 8 * sizes.kv) * sizes.wide +
         2 * sizes.heads * sizes.tile * sizes.tile * sizes.wide;
}

// Extra bytes while the backward is at the last layers: the logits twice, or the gradient of the
// head beside attention's backward, after the layer's MLP has freed what it kept.
int64_t backward_bytes(const Sizes& sizes) {
  const int64_t logits = 2 * sizes.tokens * sizes.vocabulary * sizes.wide;
  const int64_t head = sizes.vocabulary * sizes.hidden * sizes.element;
  const int64_t gone = mlp_bytes(sizes);
  return std::max(logits, head + std::max<int64_t>(0, attention_backward(sizes) - gone));
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
  for (const Microbatch& micro :
       microbatches_of(batch, mesh, rank, train_options(spec), Pass::kTraining)) {
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

// Bytes of one block of the forward at its largest. Attention holds beside the stream: q, k and v
// with and without rotation, their exchanged copies under Ulysses, and for plain attention keys and
// values by head and the scores of a block twice. The MLP holds the stream before, between and
// after, and the tensors of its gate. The head holds the logits twice.
int64_t scoring_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows) {
  const Sizes sizes = sizes_of(spec, config, rows);
  const int64_t exchanged = spec.parallel.ulysses > 1 ? 2 * sizes.q + 2 * sizes.kv : 0;
  const int64_t made = 2 * sizes.stream + 3 * sizes.q + 3 * sizes.kv + exchanged;
  const int64_t plain = sizes.tokens * 2 * sizes.kv * sizes.wide + 2 * block_scores(sizes);
  const int64_t ring = sizes.tokens * (4 * sizes.q + 4 * sizes.kv) * sizes.wide +
                       2 * sizes.heads * sizes.tile * sizes.tile * sizes.wide;
  const int64_t attention = sizes.tokens * made * sizes.element + (sizes.ring ? ring : plain);
  const int64_t mlp = sizes.tokens * (6 * sizes.stream + 3 * sizes.mlp) * sizes.element;
  const int64_t logits = sizes.tokens * 2 * sizes.vocabulary * sizes.wide;
  return std::max({attention, mlp, logits});
}

}  // namespace shardproof::sim
