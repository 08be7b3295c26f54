// Relations of the batch, of its loss and of how ranks share it.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "model/config_keys.h"
#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

namespace {

constexpr int64_t kMaxTokens = 1 << 16;  // of labels_sum_to_one, which has a sample for each label

bool trains(const CaseSpec& spec) { return spec.is(ModelWorkload::kTrain); }

bool has_pairs(const CaseSpec& spec) {
  return trains(spec) && spec.loss.kind == LossKind::kPreference;
}

int64_t samples_together(const CaseSpec& spec) { return has_pairs(spec) ? 2 : 1; }

// [B, S]: the ids moved on by `by` in the vocabulary.
at::Tensor other_ids(const at::Tensor& ids, int64_t by, int64_t vocab_size) {
  return (ids + by).remainder(vocab_size);
}

// [B, S]: true from the sample's position `from` [B] on.
at::Tensor at_or_after(const Batch& batch, const at::Tensor& from) {
  return at::arange(batch.seq_len(), at::kLong).ge(from.unsqueeze(1));
}

at::Tensor select_rows(const at::Tensor& rows, const std::vector<int64_t>& order) {
  return rows.index_select(0, at::tensor(order, at::kLong));
}

bool is_logprobs(const std::string& name) {
  return name == "logprobs" || name.starts_with("logprobs.");
}

// Changes the log-probabilities of the model, and those of each of its extra heads, [B, S].
template <class Change>
void change_logprobs(Values& values, const Change& change) {
  for (auto& [name, value] : values) {
    if (is_logprobs(name)) value = change(value);
  }
}

// --- samples_reversed
std::vector<int64_t> reversed_samples(const Variant& variant) {
  const int64_t together = samples_together(variant.spec);
  std::vector<int64_t> order;
  for (int64_t first = variant.batch.size() - together; first >= 0; first -= together) {
    for (int64_t i = 0; i < together; ++i) order.push_back(first + i);
  }
  return order;
}

void reverse_samples(Variant& first, Variant& second) {
  second.batch = second.batch.select(reversed_samples(first));
}

void reverse_logprobs(const Variant& first, const Variant&, Values&, Values& b) {
  change_logprobs(b, [order = reversed_samples(first)](const at::Tensor& logprobs) {
    return select_rows(logprobs, order);  // its own inverse
  });
}

// --- samples_twice
void double_samples(Variant& first, Variant& second) {
  std::vector<int64_t> order(static_cast<size_t>(first.batch.size()));
  std::iota(order.begin(), order.end(), 0);
  order.insert(order.end(), order.begin(), order.begin() + first.batch.size());
  second.batch = first.batch.select(order);
}

void keep_first_samples(const Variant& first, const Variant&, Values&, Values& b) {
  change_logprobs(b, [count = first.batch.size()](const at::Tensor& logprobs) {
    return logprobs.narrow(0, 0, count);
  });
}

// --- microbatches
void change_microbatches(Variant& first, Variant& second) {
  CaseSpec& spec = second.spec;
  const int64_t least = samples_together(spec);
  // A rank with no more samples has one microbatch of any size.
  if (first.batch.size() <= least * spec.parallel.ranks(Share::kSamples)) return;
  if (spec.batching.kind == BatchingKind::kFixed) {
    spec.micro_batch_size = spec.micro_batch_size == least ? 0 : least;
    return;
  }
  const int64_t multiple = row_multiple(spec);
  const int64_t longest = (first.batch.seq_len() + multiple - 1) / multiple * multiple;
  spec.batching.token_budget = spec.batching.token_budget == 0 ? longest : 0;
}

// --- padded_further
// [B, S] and `count` columns more, which hold what other columns hold.
at::Tensor with_columns(const at::Tensor& rows, int64_t count) {
  const at::Tensor column =
      at::arange(rows.size(1) + count, at::kLong).remainder(rows.size(1)).flip(0);
  const at::Tensor tail = rows.index_select(1, column.narrow(0, 0, count));
  return at::cat({rows, tail}, 1);
}

void pad_further(Variant& first, Variant& second) {
  Batch& batch = second.batch;
  const at::Tensor padding = at_or_after(batch, batch.input_lengths);
  batch.input_ids =
      at::where(padding, other_ids(batch.input_ids, 1, first.config.vocab_size), batch.input_ids);
  batch.token_mask = at::where(padding, at::ones_like(batch.token_mask), batch.token_mask);
  const int64_t count = row_multiple(first.spec);
  for (const BatchTensor& each : kBatchTensors) {
    at::Tensor& tensor = batch.*each.tensor;
    if (tensor.defined() && tensor.dim() == 2) tensor = with_columns(tensor, count);
  }
}

void cut_padding(const Variant& first, const Variant&, Values&, Values& b) {
  change_logprobs(b, [length = first.batch.seq_len()](const at::Tensor& logprobs) {
    return logprobs.narrow(1, 0, length);
  });
}

// --- packed_otherwise
std::string no_pairs(const CaseSpec& spec, const ModelConfig&) {
  return has_pairs(spec) ? "loss preference is not packed" : "";
}

void pack_otherwise(Variant&, Variant& second) {
  CaseSpec& spec = second.spec;
  const bool fixed = spec.batching.kind == BatchingKind::kFixed;
  spec.batching = {{.kind = fixed ? BatchingKind::kPacked : BatchingKind::kFixed}};
  spec.micro_batch_size = 0;
}

// --- another_mesh
void change_mesh(Variant& first, Variant& second) {
  ParallelSpec& parallel = second.spec.parallel;
  const bool one = parallel.world_size() == 1;
  parallel = {};
  if (one) parallel.tp = 2;
  parallel.sequence_parallel = one && first.config.has_experts();
}

std::string has_other_mesh(const CaseSpec& spec, const ModelConfig& config) {
  const bool one = spec.parallel.world_size() == 1;
  return one && config.num_attention_heads % 2 != 0 ? "2 ranks cannot share the heads" : "";
}

void drop_norm_of_copies(const Variant& first, const Variant&, Values& a, Values& b) {
  if (first.spec.parallel.grad_norm_counts == NormCopies::kOnce) return;
  a.erase("grad_norm");
  b.erase("grad_norm");
}

// --- positions_exchanged
std::string has_cp(const CaseSpec& spec, const ModelConfig&) {
  return spec.parallel.cp > 1 ? "" : "no sequence is cut over cp";
}

void exchange_positions(Variant&, Variant& second) {
  ContextLayout& layout = second.spec.parallel.context_layout;
  const bool zigzag = layout == ContextLayout::kZigzag;
  layout = zigzag ? ContextLayout::kContiguous : ContextLayout::kZigzag;
}

// --- loss_scaled
std::string scales_with_advantages(const CaseSpec& spec, const ModelConfig&) {
  if (!trains(spec)) return "the case has no loss";
  return has_pairs(spec) ? "loss preference is not proportional to a number of the batch" : "";
}

void scale_loss(Variant& first, Variant& second) {
  for (Variant* variant : {&first, &second}) {
    Batch& batch = variant->batch;
    variant->spec.loss.kind = LossKind::kClippedPolicyGradient;
    const at::Tensor count = at::arange(batch.token_mask.numel(), at::kDouble);
    const at::Tensor drawn = count.mul(0.37).sin().view(batch.token_mask.sizes());
    if (!batch.advantages.defined()) batch.advantages = drawn;
    if (!batch.prev_logprobs.defined()) batch.prev_logprobs = drawn - 4;
    if (!batch.reference_logprobs.defined()) batch.reference_logprobs = drawn - 4;
  }
  second.batch.advantages = second.batch.advantages * 4;
  second.spec.loss.kl_beta *= 4;
  if (first.config.extra_heads == 0) return;
  set_model_key(second, kExtraLossKey, 4 * first.config.extra_loss_weight);
}

void scale_loss_back(const Variant&, const Variant&, Values&, Values& b) {
  for (auto& [name, value] : b) {
    if (!is_logprobs(name)) value = value / 4;
  }
}

// --- mask_scaled
std::string has_mean(const CaseSpec& spec, const ModelConfig&) {
  if (!trains(spec)) return "the case has no loss";
  const bool sums = has_pairs(spec) && spec.loss.normalization == LossNormalization::kToken;
  return sums ? "loss preference sums over tokens" : "";
}

void scale_mask(Variant&, Variant& second) {
  second.batch.token_mask = second.batch.token_mask * 4;
}

// --- labels_exchanged
// By so much every id moves on; with tp, to the vocabulary of the next rank.
int64_t id_shift(const Variant& variant) {
  const int64_t parts = std::max<int64_t>(2, variant.spec.parallel.tp);
  return (variant.config.vocab_size + parts - 1) / parts;
}

void exchange_labels(Variant& first, Variant& second) {
  const int64_t vocab_size = first.config.vocab_size, shift = id_shift(first);
  second.batch.input_ids = other_ids(first.batch.input_ids, shift, vocab_size);
  const int64_t pad = first.config.pad_token_id;
  if (pad >= 0) set_model_key(second, "pad_token_id", (pad + shift) % vocab_size);
}

void exchange_rows(const Variant& second, WeightMaps& maps) {
  const int64_t vocab_size = second.config.vocab_size, shift = id_shift(second);
  std::vector<int64_t> order;
  for (int64_t id = 0; id < vocab_size; ++id) {
    order.push_back((id - shift + vocab_size) % vocab_size);
  }
  maps.add("model.embed_tokens.weight", permuted(0, order));
  if (!second.config.tie_word_embeddings) maps.add("lm_head.weight", permuted(0, order));
}

// --- labels_sum_to_one
std::string has_few_labels(const CaseSpec& spec, const ModelConfig& config) {
  const int64_t labels = config.vocab_size;
  if (labels * spec.data.seq_len > kMaxTokens) return "the vocabulary is large";
  const bool dealt =
      labels % spec.parallel.ranks(Share::kSamples) == 0 && labels % samples_together(spec) == 0;
  return dealt ? "" : "the mesh cannot share a sample for each token of the vocabulary";
}

int64_t longest_sample(const Batch& batch) { return batch.input_lengths.argmax().item<int64_t>(); }

void give_each_label(Variant& first, Variant& second) {
  const int64_t labels = first.config.vocab_size, sample = longest_sample(first.batch);
  const int64_t length = first.batch.input_lengths[sample].item<int64_t>();
  second.batch = first.batch.select(std::vector<int64_t>(static_cast<size_t>(labels), sample));
  if (length > 1) second.batch.input_ids.select(1, length - 1).copy_(at::arange(labels, at::kLong));
  second.spec.micro_batch_size = 0;
}

void sum_probabilities(const Variant&, const Variant& second, Values& a, Values& b) {
  const int64_t length = second.batch.input_lengths[0].item<int64_t>();
  const at::Tensor logprobs = b.at("logprobs").select(1, length - 1);
  a.clear();
  b.clear();
  if (length == 1) return;  // it has no label
  a["probabilities"] = at::ones({}, at::kDouble);
  b["probabilities"] = logprobs.exp().sum();
}

// --- later_tokens_changed
// [B]: the first position that changes.
at::Tensor first_changed(const Batch& batch) {
  return batch.input_lengths.div(2, "floor").clamp_min(1);
}

void change_later_tokens(Variant& first, Variant& second) {
  const at::Tensor later = at_or_after(first.batch, first_changed(first.batch));
  for (Variant* variant : {&first, &second}) {
    at::Tensor& mask = variant->batch.token_mask;
    mask = at::where(later, at::zeros_like(mask), mask);
  }
  const int64_t vocab_size = first.config.vocab_size;
  at::Tensor& ids = second.batch.input_ids;
  ids = at::where(later, other_ids(ids, 1 + vocab_size / 3, vocab_size), ids);
}

void keep_earlier_logprobs(const Variant& first, const Variant&, Values& a, Values& b) {
  const at::Tensor later = at_or_after(first.batch, first_changed(first.batch));
  for (Values* values : {&a, &b}) {
    change_logprobs(*values, [&later](const at::Tensor& logprobs) {
      return at::where(later, at::zeros_like(logprobs), logprobs);
    });
  }
}

}  // namespace

std::vector<Relation> batch_relations() {
  return {
      {.name = "files", .changed = "the same weights and batch, read from files"},
      {.name = "samples_reversed",
       .changed = "the samples in reverse order",
       .change = reverse_samples,
       .back = reverse_logprobs},
      {.name = "samples_twice",
       .changed = "every sample twice",
       .change = double_samples,
       .back = keep_first_samples},
      {.name = "microbatches",
       .changed = "microbatches of another size",
       .change = change_microbatches},
      {.name = "padded_further",
       .changed = "more padding, with other tokens in it",
       .change = pad_further,
       .back = cut_padding},
      {.name = "packed_otherwise",
       .changed = "samples packed into rows, or not",
       .why_not = no_pairs,
       .change = pack_otherwise},
      {.name = "another_mesh",
       .changed = "another mesh",
       .why_not = has_other_mesh,
       .change = change_mesh,
       .back = drop_norm_of_copies},
      {.name = "positions_exchanged",
       .changed = "the positions of each sequence on other ranks of cp",
       .why_not = has_cp,
       .change = exchange_positions},
      {.name = "loss_scaled",
       .changed = "4 times the loss",
       .why_not = scales_with_advantages,
       .change = scale_loss,
       .back = scale_loss_back,
       .changes_first = true,
       .exact = true},
      {.name = "mask_scaled",
       .changed = "4 times the weight of every token",
       .why_not = has_mean,
       .change = scale_mask},
      {.name = "labels_exchanged",
       .changed = "every token's id exchanged with one of another part of the vocabulary",
       .change = exchange_labels,
       .change_weights = exchange_rows},
      {.name = "labels_sum_to_one",
       .changed = "one sample with each token of the vocabulary as its last",
       .why_not = has_few_labels,
       .change = give_each_label,
       .back = sum_probabilities},
      {.name = "later_tokens_changed",
       .changed = "other tokens in the second half of each sample",
       .change = change_later_tokens,
       .back = keep_earlier_logprobs,
       .changes_first = true},
  };
}

}  // namespace shardproof::sim::relations
