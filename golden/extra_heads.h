// The extra heads of a model on one device, written out from their definition: head k = 1 .. D
// reads the embedding of the token k places behind each one and the stream of the head before it,
// and predicts the token behind that.
//
// Legend: B samples, S positions, E width, V vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/decoder.h"

namespace shardproof::golden {

// The logits [B, S, V] of each head of `model`, whose layers are plain. `stream` [B, S, E] is the
// output of the model's last norm. A token that would lie behind the end of its sample is token 0.
std::vector<at::Tensor> dense_head_logits(Decoder& model, const at::Tensor& stream,
                                          const Batch& batch, const StepContext& context);

// With config.repeats_extra_layer: all heads compute with the layers of the first one. Call it
// before anything wraps them; slots and what they observe stay apart.
void repeat_first_head(Decoder& model);

// Wider float [B, S]: the log-probability of input_ids[:, t] by head `depth`, in the place of that
// token. The first 1 + depth tokens of a sample, and padding, are 0.
at::Tensor dense_head_logprobs(const at::Tensor& logits, const Batch& batch, int64_t depth,
                               const at::Tensor& moves = {});

struct HeadLosses {
  at::Tensor sum;                        // with its weight, differentiable; undefined without heads
  std::map<std::string, double> values;  // without: "mtp_loss.1"
};
// `logprobs` of every head, in their order; `weight` is that of their mean. A head whose tokens the
// mask all leaves out has loss 0.
HeadLosses dense_head_losses(const std::vector<at::Tensor>& logprobs, const Batch& batch,
                             double weight);

}  // namespace shardproof::golden
