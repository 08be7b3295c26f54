// A global batch, right-padded, in the form of a case folder.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

struct Batch {
  at::Tensor input_ids;      // [B, S] int64
  at::Tensor input_lengths;  // [B] int64; positions from the length on are padding
  at::Tensor token_mask;     // [B, S] float64
  at::Tensor sample_mask;    // [B] float64
  at::Tensor prev_logprobs, reference_logprobs, advantages;  // [B, S] float64, or undefined

  int64_t size() const { return input_ids.size(0); }     // B
  int64_t seq_len() const { return input_ids.size(1); }  // S
  // [B, S] float64: token_mask * sample_mask, with column 0 and padding set to 0.
  at::Tensor loss_mask() const;
  // `count` neighboring samples from `first`: views of every defined tensor.
  Batch slice(int64_t first, int64_t count) const;
  // Copies of these samples, in this order.
  Batch select(const std::vector<int64_t>& samples) const;
};

// The tensors under the names of batch.safetensors; dim 0 of each is the sample.
struct BatchTensor {
  const char* name;
  at::Tensor Batch::*tensor;
};
inline constexpr BatchTensor kBatchTensors[] = {
    {"input_ids", &Batch::input_ids},         {"input_lengths", &Batch::input_lengths},
    {"token_mask", &Batch::token_mask},       {"sample_mask", &Batch::sample_mask},
    {"prev_logprobs", &Batch::prev_logprobs}, {"reference_logprobs", &Batch::reference_logprobs},
    {"advantages", &Batch::advantages}};

struct SeededBatchOptions {
  int64_t batch_size = 4;
  int64_t seq_len = 16;
  std::vector<int64_t> lengths = {};
  double mask_probability = 0.8;
  bool mask_weights = false;       // token_mask has weights of 0.25 to 2, not 1
  bool masked_not_finite = false;  // NaN, infinite or huge wherever the loss mask is 0
  std::vector<int64_t> dropped_samples = {};
  int64_t huge_advantage_sample = -1;  // sample whose advantages are multiplied; -1: none
  double huge_advantage_factor = 1;
  int64_t vocab_size = 0;
  int64_t seed = 0;
};

// Throws Error(kBadInput) for a missing tensor, a wrong shape or dtype, a token outside the
// vocabulary, a length outside 1..S, an empty batch, and a non-finite number.
Batch load_batch(const std::string& safetensors_path, int64_t vocab_size);
// Draws token ids, masks, advantages and old logprobs from one seed. Targets lie in every part of
// the vocabulary; padding holds random ids too.
Batch seeded_batch(const SeededBatchOptions& options);

}  // namespace shardproof
