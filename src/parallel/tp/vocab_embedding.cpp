#include "parallel/tp/vocab_embedding.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/equal_parts.h"
#include "collective/mappings.h"
#include "parallel/tp/vocab_parallel_embedding.h"

namespace shardproof {
namespace {

void check_ids(const at::Tensor& ids, int64_t vocab_size) {
  if (!ids.is_cpu() || ids.numel() == 0) return;
  const auto lowest = ids.min().item<int64_t>(), highest = ids.max().item<int64_t>();
  if (lowest >= 0 && highest < vocab_size) return;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("token id {} is outside the vocabulary of {}",
                                   lowest < 0 ? lowest : highest, vocab_size),
               .fix = fmt::format("ids are 0 to {}", vocab_size - 1)});
}

StateKey loose(StateKey key) {
  key.allow_shape_mismatch = true;
  return key;
}

}  // namespace

VocabEmbedding::VocabEmbedding(Options options, Communicator& tp)
    : options_(std::move(options)), tp_(tp) {
  divide(options_.num_embeddings, tp, "num_embeddings");
  weight_ = make_layer_parameter({.name = "weight",
                                  .global_shape = {options_.num_embeddings, options_.embedding_dim},
                                  .dim = 0,
                                  .blocks = {options_.num_embeddings},
                                  .dtype = options_.dtype,
                                  .init = options_.init,
                                  .from = options_.init_from,
                                  .keep_master = options_.keep_master},
                                 tp);
}

at::Tensor VocabEmbedding::forward(const at::Tensor& ids) {
  check_ids(ids, options_.num_embeddings);
  const int64_t first = vocab_range_of_whole(options_.num_embeddings, tp_.rank(), tp_.size()).first;
  const at::Tensor own = look_up_own_tokens(
      weight_.tensor, ids, first, {.pad_token_id = -1, .deterministic = options_.deterministic});
  if (!options_.reduce_scatter) return all_reduce_with_identity_backward(own, tp_, options_.label);
  return reduce_scatter_with_all_gather_backward(own.transpose(0, 1), tp_, 0, options_.label);
}

ShardedState VocabEmbedding::sharded_state(const StateKey& key) const {
  ShardedState state;
  append_sharded(state, weight_, loose(key), tp_);
  return state;
}

void VocabEmbedding::load(const ShardedState& saved, const StateKey& key) {
  load_sharded(saved, weight_, loose(key), tp_);
}

}  // namespace shardproof
