#include "parallel/tp/vocab_parallel_embedding.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "collective/mappings.h"

namespace shardproof {

at::Tensor look_up_own_tokens(const at::Tensor& weight, const at::Tensor& ids, int64_t first,
                              const TokenLookup& lookup) {
  const int64_t rows = weight.size(0);
  const at::Tensor foreign = (ids < first).logical_or(ids >= first + rows);
  const at::Tensor local_ids = (ids - first).masked_fill(foreign, 0);
  const bool by_index = lookup.deterministic && !weight.is_cpu();
  at::Tensor own = by_index ? weight.index({local_ids}) : at::embedding(weight, local_ids);
  if (lookup.pad_token_id >= 0) {
    own = at::where(ids.eq(lookup.pad_token_id).unsqueeze(-1), own.detach(), own);
  }
  return own.masked_fill(foreign.unsqueeze(-1), 0);
}

at::Tensor VocabParallelEmbedding::forward(at::TensorList inputs, const StepContext&) {
  const at::Tensor& ids = inputs[0];
  SHARDPROOF_ASSERT(!options_.sequence_parallel || ids.size(1) % tp_.size() == 0,
                    "with sequence parallelism the sequence is padded to a multiple of tp");
  const int64_t first = tp_.rank() * weight_->tensor.size(0);
  const at::Tensor own = look_up_own_tokens(
      weight_->tensor, ids, first,
      {.pad_token_id = options_.pad_token_id, .deterministic = options_.deterministic});
  return options_.sequence_parallel
             ? reduce_scatter_with_all_gather_backward(own, tp_, 1, options_.label)
             : all_reduce_with_identity_backward(own, tp_, options_.label);
}

}  // namespace shardproof
