#include "logprob/logit_rows.h"

#include <ATen/ATen.h>
#include <ATen/TensorUtils.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kLeastTemperature = 1e-30, kMostTemperature = 1e30;  // of the row kernels

// The leading dims merged into one, if the strides allow that without a copy.
std::optional<at::Tensor> as_rows(const at::Tensor& logits) {
  if (logits.dim() == 1) return logits.unsqueeze(0);
  int64_t rows = 1;
  for (int64_t dim = 0; dim + 1 < logits.dim(); ++dim) rows *= logits.size(dim);
  const std::vector<int64_t> shape = {rows, logits.size(-1)};
  const auto strides = at::detail::computeStride(logits.sizes(), logits.strides(), shape);
  if (!strides) return std::nullopt;
  return logits.as_strided(shape, *strides);
}

void add_blocks(const at::Tensor& logits, int64_t block_rows, int64_t& first,
                std::vector<RowBlock>& out) {
  if (logits.numel() == 0 && logits.size(-1) != 0) return;
  const std::optional<at::Tensor> rows = as_rows(logits);
  if (!rows) {
    for (int64_t i = 0; i < logits.size(0); ++i) {
      add_blocks(logits.select(0, i), block_rows, first, out);
    }
    return;
  }
  for (int64_t begin = 0; begin < rows->size(0); begin += block_rows) {
    const int64_t count = std::min(block_rows, rows->size(0) - begin);
    out.push_back({.first = first, .count = count, .logits = rows->narrow(0, begin, count)});
    first += count;
  }
}

}  // namespace

at::ScalarType logprob_type(at::ScalarType logits) {
  return logits == at::kDouble ? at::kDouble : at::kFloat;
}

bool keeps_nothing(const LogprobOptions& options) {
  return options.inference_only.value_or(!at::GradMode::is_enabled());
}

VocabShard VocabShard::of(int64_t columns, int64_t vocab_size, Communicator& tp,
                          const LogprobOptions& options) {
  if (!(options.temperature > 0) || !std::isfinite(options.temperature)) {
    throw_bad_input(fmt::format("a temperature of {}", options.temperature),
                    "give a finite one above 0");
  }
  const bool whole = columns == vocab_size || (tp.size() == 1 && columns > vocab_size);
  const VocabRange all{.start = 0, .columns = columns, .counted = vocab_size};  // padding behind it
  const VocabShard shard{.range = whole ? all : vocab_range(vocab_size, tp.size(), tp.rank()),
                         .tp = whole ? nullptr : &tp,
                         .label = options.label,
                         .temperature = options.temperature,
                         .block_rows = options.block_rows};
  if (columns != shard.range.columns) {
    throw_refused(fmt::format("{} columns of logits, {} are this rank's share of {} tokens",
                              columns, shard.range.columns, vocab_size),
                  fmt::format("pad the vocabulary to {} columns on each of {} ranks",
                              shard.range.columns, tp.size()));
  }
  return shard;
}

void VocabShard::save(FunctionContext& context) const {
  context.saved_data["start"] = range.start;
  context.saved_data["counted"] = range.counted;
  context.saved_data["temperature"] = temperature;
  context.saved_data["block_rows"] = block_rows;
}

VocabShard VocabShard::load(FunctionContext& context, int64_t columns) {
  auto& data = context.saved_data;
  return {.range = {.start = data["start"].toInt(),
                    .columns = columns,
                    .counted = data["counted"].toInt()},
          .temperature = data["temperature"].toDouble(),
          .block_rows = data["block_rows"].toInt()};
}

at::Tensor VocabShard::reduce(const at::Tensor& tensor, ReduceOp op, const char* what) const {
  return tp == nullptr ? tensor : tp->all_reduce(tensor, op, label + what);
}

void check_targets(const at::Tensor& target, int64_t vocab_size) {
  if (target.numel() == 0) return;
  const int64_t smallest = target.min().item<int64_t>();
  const int64_t largest = target.max().item<int64_t>();
  if (smallest >= 0 && largest < vocab_size) return;
  throw_bad_input(fmt::format("target token {} is outside the vocabulary of {} tokens",
                              smallest < 0 ? smallest : largest, vocab_size),
                  fmt::format("give ids from 0 to {}; mask positions in the loss, not by an id",
                              vocab_size - 1));
}

int64_t rows_per_block(int64_t columns, at::ScalarType wide, int64_t requested) {
  if (requested > 0) return requested;
  const int64_t row_bytes =
      std::max<int64_t>(columns, 1) * static_cast<int64_t>(c10::elementSize(wide));
  return std::max<int64_t>(1, kBlockBytes / row_bytes);
}

std::vector<RowBlock> row_blocks(const at::Tensor& logits, const VocabShard& shard) {
  const at::Tensor counted = logits.narrow(-1, 0, shard.range.counted);
  std::vector<RowBlock> blocks;
  int64_t first = 0;
  add_blocks(
      counted,
      rows_per_block(shard.range.counted, logprob_type(logits.scalar_type()), shard.block_rows),
      first, blocks);
  return blocks;
}

bool has_row_kernels(const at::Tensor& rows, const VocabShard& shard) {
  const bool known = rows.scalar_type() == at::kFloat || rows.scalar_type() == at::kBFloat16;
  const bool held = shard.temperature > kLeastTemperature && shard.temperature < kMostTemperature;
  return known && rows.is_cpu() && rows.stride(-1) == 1 && held;
}

at::Tensor empty_gradient(const at::Tensor& logits) {
  at::Tensor out = at::empty(logits.sizes(), logits.options());
#ifdef MADV_HUGEPAGE
  constexpr uintptr_t kHugePage = uintptr_t{1} << 21;
  if (out.is_cpu() && out.nbytes() >= 16 * kHugePage) {
    const auto begin = reinterpret_cast<uintptr_t>(out.mutable_data_ptr());
    const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
    const uintptr_t end = (begin + out.nbytes()) / kHugePage * kHugePage;
    // This is only a hint, and its failure has no effect.
    ::madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
  }
#endif
  return out;
}

at::Tensor BlockBuffer::part(const at::Tensor& logits) {
  if (!memory_.defined() || memory_.numel() < logits.numel()) {
    memory_ = at::empty({logits.numel()}, logits.options().dtype(wide_));
  }
  return memory_.narrow(0, 0, logits.numel()).view(logits.sizes());
}

at::Tensor BlockBuffer::shifted(const at::Tensor& logits, const at::Tensor& max,
                                double temperature) {
  at::Tensor out = part(logits);
  if (logits.scalar_type() == wide_) {
    at::sub_out(out, logits, max.unsqueeze(-1));
  } else {
    out.copy_(logits).sub_(max.unsqueeze(-1));
  }
  return tempered(out, temperature);
}

at::Tensor row_max(const at::Tensor& logits, at::ScalarType wide) {
  if (logits.size(-1) == 0) {
    return at::full({logits.size(0)}, -kInfinity, logits.options().dtype(wide));
  }
  return logits.amax(-1).to(wide);
}

at::Tensor tempered(at::Tensor difference, double temperature) {
  return temperature == 1.0 ? difference : difference.div_(temperature);
}

at::Tensor finite_max(const at::Tensor& max) { return max.masked_fill(max.eq(-kInfinity), 0); }

}  // namespace shardproof
