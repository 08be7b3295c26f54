// Extra heads of a decoder, as decoder.h describes them.
#include <ATen/ATen.h>

#include "base/error.h"
#include "model/decoder_block.h"

namespace shardproof {

// x [b, (1 + depth) s, E]: x_0 .. x_depth -> [b, (2 + depth) s, E]. The parts of the stream may be
// shards of the sequence, and so may those of the embedding.
at::Tensor Decoder::with_extra_head(const Block& block, int64_t depth, const at::Tensor& x,
                                    const StepContext& context, const at::Tensor& rotary) const {
  const int64_t rows = x.size(1) / (1 + depth);
  SHARDPROOF_ASSERT(x.size(1) == rows * (1 + depth), "the stream has a part for each head before");
  const at::Tensor before = x.narrow(1, depth * rows, rows).contiguous();
  const at::Tensor ids = context.further_ids[depth];
  const at::Tensor added = block.region.run(
      before, context, [this, &block, ids, rotary](const auto& stream, const auto& step) {
        const at::Tensor embedded = (*block.embed_tokens)({ids}, step);
        const at::Tensor beside = at::cat(
            {(*block.embedding_norm)({embedded}, step), (*block.stream_norm)({stream}, step)}, -1);
        const at::Tensor out = run_block(block, (*block.join)({beside}, step), step, rotary);
        return (*block.head_norm)({out}, step);
      });
  return at::cat({x, added}, 1);
}

// [b, (1 + D) s, E] -> [b, (1 + D) s, V]; without further_ids [b, s, E] -> [b, s, V].
at::Tensor Decoder::run_heads(const at::Tensor& x, const StepContext& context) const {
  if (!context.further_ids.defined() || config_.extra_heads == 0) return (*lm_head_)({x}, context);
  const int64_t rows = x.size(1) / (1 + config_.extra_heads);
  std::vector<at::Tensor> logits;
  for (int64_t depth = 0; depth <= config_.extra_heads; ++depth) {
    Slot* head = depth == 0 ? lm_head_ : blocks_[config_.num_hidden_layers + depth - 1].head;
    logits.push_back((*head)({x.narrow(1, depth * rows, rows).contiguous()}, context));
  }
  return at::cat(logits, 1);
}

}  // namespace shardproof
