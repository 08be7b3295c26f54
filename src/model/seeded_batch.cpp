// Draws a batch from one seed.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/seed.h"
#include "model/batch.h"

namespace shardproof {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 31;

void require(bool good, std::string what, std::string fix) {
  if (!good) throw_bad_input(std::move(what), std::move(fix));
}

// Checks the options and fills in seq_len (0: the greatest length) and absent lengths (seq_len).
SeededBatchOptions checked(SeededBatchOptions options) {
  require(options.vocab_size >= 1, fmt::format("vocab_size={} is not positive", options.vocab_size),
          "give the model a vocabulary");
  if (!options.lengths.empty() && options.seq_len == 0) {
    options.seq_len = *std::max_element(options.lengths.begin(), options.lengths.end());
  }
  require(options.batch_size >= 1 && options.seq_len >= 1,
          fmt::format("a batch of {} samples of {} tokens is empty", options.batch_size,
                      options.seq_len),
          "give batch_size and seq_len of at least 1");
  require(options.batch_size <= kMaxTokens / options.seq_len,
          fmt::format("a batch of {} samples of {} tokens is too large", options.batch_size,
                      options.seq_len),
          fmt::format("stay below {} tokens", kMaxTokens));
  if (options.lengths.empty()) {
    options.lengths.assign(static_cast<size_t>(options.batch_size), options.seq_len);
  }
  require(static_cast<int64_t>(options.lengths.size()) == options.batch_size,
          fmt::format("{} lengths for batch_size={}", options.lengths.size(), options.batch_size),
          "give one length per sample, or none");
  for (const int64_t length : options.lengths) {
    require(length >= 1 && length <= options.seq_len,
            fmt::format("length {} is not in 1..{} (seq_len)", length, options.seq_len),
            "mend the lengths or seq_len");
  }
  for (const int64_t sample : options.dropped_samples) {
    require(sample >= 0 && sample < options.batch_size,
            fmt::format("dropped sample {} is not in 0..{}", sample, options.batch_size - 1),
            "mend dropped_samples");
  }
  require(options.mask_probability >= 0 && options.mask_probability <= 1,
          fmt::format("mask_probability={} is not in 0..1", options.mask_probability),
          "give a probability");
  return options;
}

at::Generator stream(int64_t seed, const char* name) {
  return at::detail::createCPUGenerator(generator_seed(seed, std::string("batch.") + name));
}

// Draws `count` tokens as whole shuffled vocabularies, so that every part of the vocabulary occurs.
at::Tensor draw_ids(int64_t count, int64_t vocab_size, int64_t seed) {
  const at::Generator generator = stream(seed, "input_ids");
  std::vector<at::Tensor> rounds;
  for (int64_t drawn = 0; drawn < count; drawn += vocab_size) {
    rounds.push_back(at::randperm(vocab_size, generator, at::TensorOptions().dtype(at::kLong)));
  }
  return at::cat(rounds).narrow(0, 0, count);
}

// 0 for a token that does not count. Of a positive share at least one `scored` token ([B, S] bool)
// counts, the one that was drawn next to it. Weights are multiples of a quarter, so their sums are
// exact.
at::Tensor draw_token_mask(const SeededBatchOptions& options, const at::Tensor& scored) {
  const std::vector<int64_t> shape{options.batch_size, options.seq_len};
  const auto uniform = [&](const char* name) {
    return at::rand(shape, stream(options.seed, name), at::TensorOptions().dtype(at::kDouble));
  };
  const at::Tensor drawn = uniform("token_mask");
  const at::Tensor among = drawn.masked_fill(scored.logical_not(), 1);
  const double least = among.min().item<double>();
  const bool none = options.mask_probability > 0 && least >= options.mask_probability && least < 1;
  const at::Tensor counted =
      (none ? among.le(least) : drawn.lt(options.mask_probability)).to(at::kDouble);
  if (!options.mask_weights) return counted;
  return counted * uniform("token_mask weights").mul_(8).floor_().add_(1).div_(4);
}

// `values` where the mask counts; NaN, infinite and huge numbers in turn elsewhere.
at::Tensor sane_where_counted(const at::Tensor& values, const at::Tensor& mask) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const at::Tensor never =
      at::tensor({std::nan(""), kInfinity, -kInfinity, 1e300, -1e300}, at::kDouble);
  const at::Tensor turn = at::arange(values.numel(), at::kLong).remainder(never.numel());
  return at::where(mask.ne(0), values, never.index_select(0, turn).view(values.sizes()));
}

}  // namespace

Batch seeded_batch(const SeededBatchOptions& given) {
  const SeededBatchOptions options = checked(given);
  const std::vector<int64_t> shape{options.batch_size, options.seq_len};
  const auto normal = [&](const char* name) {
    return at::randn(shape, stream(options.seed, name), at::TensorOptions().dtype(at::kDouble));
  };
  Batch batch;
  batch.input_ids =
      draw_ids(options.batch_size * options.seq_len, options.vocab_size, options.seed).view(shape);
  batch.input_lengths = at::tensor(options.lengths, at::kLong);
  batch.token_mask = at::ones(shape, at::kDouble);
  batch.sample_mask = at::ones({options.batch_size}, at::kDouble);
  for (const int64_t sample : options.dropped_samples) batch.sample_mask[sample] = 0.0;
  batch.token_mask = draw_token_mask(options, batch.loss_mask().ne(0));
  // Values around a uniform prediction, so that clipped_pg clips some ratios on either side.
  const double uniform = -std::log(static_cast<double>(options.vocab_size));
  batch.prev_logprobs = uniform + 0.5 * normal("prev_logprobs");
  batch.reference_logprobs = uniform + 0.5 * normal("reference_logprobs");
  batch.advantages = normal("advantages");
  if (options.huge_advantage_sample >= 0) {
    batch.advantages[options.huge_advantage_sample] *= options.huge_advantage_factor;
  }
  if (options.masked_not_finite) {
    const at::Tensor mask = batch.loss_mask();
    for (at::Tensor* values :
         {&batch.prev_logprobs, &batch.reference_logprobs, &batch.advantages}) {
      *values = sane_where_counted(*values, mask);
    }
  }
  return batch;
}

}  // namespace shardproof
