#include "logprob/row_softmax.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "logprob/row_kernels.h"

namespace shardproof {
namespace {

constexpr int64_t kRowsOfOneThread = 16;

const uint16_t* bits_of(const at::Tensor& tensor) {
  return reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>());
}

// The outputs of the sums over rows; `total` may be null.
struct RowSums {
  float* max;
  float* sum;
  float* total;
};

// Computes for every row of float32 or bfloat16 logits [r, counted], counted > 0: its largest
// logit, its sum of exponentials and, if `total` is not null, its sum of (logit - largest) * scale.
void add_rows(const at::Tensor& logits, float scale, const RowSums& out) {
  const RowKernels kernels = row_kernels();
  const int64_t columns = logits.size(1), stride = logits.stride(0);
  const auto each = [&](const auto* first, const auto& kernel, const auto& add_up) {
    at::parallel_for(0, logits.size(0), kRowsOfOneThread, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const RowSum found = kernel(first + row * stride, columns, scale);
        out.max[row] = found.max;
        out.sum[row] = found.sum;
        if (out.total == nullptr) continue;
        const float base = std::isinf(found.max) && found.max < 0 ? 0 : found.max;
        out.total[row] = add_up(first + row * stride, columns, base) * scale;
      }
    });
  };
  if (logits.scalar_type() == at::kFloat) {
    each(logits.const_data_ptr<float>(), kernels.sum_float, kernels.total_float);
  } else {
    each(bits_of(logits), kernels.sum_bfloat16, kernels.total_bfloat16);
  }
}

struct RowGradient {
  ExpTerms terms;
  int64_t target;  // -1: not among these columns
  float at_target;
  bool none;  // the gradient is exactly 0 everywhere
};

void set(float& place, float value) { place = value; }
void set(uint16_t& place, float value) { place = at::BFloat16(value).x; }

template <class Element, class Out>
void write_row(const Element* logits, int64_t columns, const RowGradient& row, Out* out,
               void (*kernel)(const Element*, int64_t, const ExpTerms&, Out*),
               void (*to_float)(const Element*, int64_t, const ExpTerms&, float*)) {
  if (row.none) {
    std::fill_n(out, columns, Out{0});
    return;
  }
  kernel(logits, columns, row.terms, out);
  if (row.target < 0) return;
  float softmax = 0;
  to_float(logits + row.target, 1, row.terms, &softmax);
  set(out[row.target], softmax + row.at_target);
}

}  // namespace

LocalTarget LocalTarget::of(const at::Tensor& target, const VocabRange& range) {
  const at::Tensor owned =
      (target >= range.start).logical_and(target < range.start + range.counted);
  return {.column = at::where(owned, target - range.start, at::zeros_like(target)), .owned = owned};
}

RowSoftmax::RowSoftmax(int64_t rows, const VocabShard& shard, const at::TensorOptions& wide,
                       Also also)
    : shard_(shard),
      buffer_(c10::typeMetaToScalarType(wide.dtype())),
      max_(at::empty({rows}, wide)),
      sum_(at::empty({rows}, wide)),
      picked_(at::empty({rows}, wide)) {
  if (also == kSumOfLogits) shifted_ = at::empty({rows}, wide);
}

void RowSoftmax::add(int64_t first, const at::Tensor& logits, const LocalTarget& target) {
  const int64_t count = logits.size(0);
  const at::ScalarType wide = max_.scalar_type();
  if (logits.size(-1) > 0 && has_row_kernels(logits, shard_)) {
    add_rows(logits, static_cast<float>(1 / shard_.temperature),
             {.max = max_.data_ptr<float>() + first,
              .sum = sum_.data_ptr<float>() + first,
              .total = shifted_.defined() ? shifted_.data_ptr<float>() + first : nullptr});
  } else {
    const at::Tensor max = row_max(logits, wide);
    max_.narrow(0, first, count).copy_(max);
    at::Tensor shifted = buffer_.shifted(logits, finite_max(max), shard_.temperature);
    if (shifted_.defined()) shifted_.narrow(0, first, count).copy_(shifted.sum(-1));
    sum_.narrow(0, first, count).copy_(shifted.exp_().sum(-1));
  }
  at::Tensor picked = picked_.narrow(0, first, count);
  if (logits.size(-1) == 0) {
    picked.zero_();
    return;
  }
  const at::Tensor column = target.column.narrow(0, first, count).unsqueeze(-1);
  picked.copy_(logits.gather(-1, column).squeeze(-1));
}

at::Tensor RowSoftmax::reduce(const LocalTarget& target) {
  const at::Tensor own_max = max_;
  max_ = shard_.reduce(own_max, ReduceOp::kMax, " max");
  const at::Tensor base = finite_max(max_);
  const double temperature = shard_.temperature;
  sum_ = shard_.reduce(sum_ * tempered(own_max - base, temperature).exp_(), ReduceOp::kSum, " sum");
  const at::Tensor own_picked =
      at::where(target.owned, tempered(picked_ - base, temperature), at::zeros_like(picked_));
  const at::Tensor picked = shard_.reduce(own_picked, ReduceOp::kSum, " picked");
  if (shifted_.defined()) {
    const at::Tensor moved =
        tempered(finite_max(own_max) - base, temperature) * shard_.range.counted;
    shifted_ = shard_.reduce(shifted_ + moved, ReduceOp::kSum, " logits");
  }
  max_ = base;
  return picked - sum_.log();
}

LogprobGradient::LogprobGradient(const VocabShard& shard, at::Tensor max, at::Tensor sum,
                                 LocalTarget target, const at::Tensor& grad, VocabMean mean)
    : shard_(shard),
      buffer_(max.scalar_type()),
      max_(std::move(max)),
      target_(std::move(target)),
      no_gradient_(grad.eq(0)) {
  const at::Tensor scaled = shard.temperature == 1.0 ? grad : grad / shard.temperature;
  grad_at_target_ = at::where(target_.owned, scaled, at::zeros_like(scaled));
  if (mean.share > 0) {
    grad_at_target_.mul_(1 - mean.share);
    everywhere_ = scaled * (mean.share / static_cast<double>(mean.vocab_size));
  }
  softmax_factor_ = scaled.neg() / sum;  // all are fresh tensors, so rows are contiguous
}

void LogprobGradient::write_rows(int64_t first, const at::Tensor& logits,
                                 const at::Tensor& out) const {
  const RowKernels kernels = row_kernels();
  const int64_t columns = logits.size(1), stride = logits.stride(0), out_stride = out.stride(0);
  const auto scale = static_cast<float>(1 / shard_.temperature);
  const float* max = max_.const_data_ptr<float>() + first;
  const float* factor = softmax_factor_.const_data_ptr<float>() + first;
  const float* at_target = grad_at_target_.const_data_ptr<float>() + first;
  const float* everywhere =
      everywhere_.defined() ? everywhere_.const_data_ptr<float>() + first : nullptr;
  const int64_t* column = target_.column.const_data_ptr<int64_t>() + first;
  const bool* owned = target_.owned.const_data_ptr<bool>() + first;
  const bool* none = no_gradient_.const_data_ptr<bool>() + first;
  const auto each = [&](const auto* from, auto* to, const auto& kernel, const auto& to_float) {
    at::parallel_for(0, logits.size(0), kRowsOfOneThread, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const RowGradient gradient{
            .terms = {.max = max[row],
                      .scale = scale,
                      .factor = factor[row],
                      .addend = everywhere == nullptr ? -0.0f : everywhere[row]},
            .target = owned[row] ? column[row] : -1,
            .at_target = at_target[row],
            .none = none[row]};
        write_row(from + row * stride, columns, gradient, to + row * out_stride, kernel, to_float);
      }
    });
  };
  if (logits.scalar_type() == at::kFloat) {
    each(logits.const_data_ptr<float>(), out.data_ptr<float>(), kernels.exp_float,
         kernels.exp_float);
  } else if (out.scalar_type() == at::kFloat) {
    each(bits_of(logits), out.data_ptr<float>(), kernels.exp_bfloat16_to_float,
         kernels.exp_bfloat16_to_float);
  } else {
    each(bits_of(logits), reinterpret_cast<uint16_t*>(out.data_ptr<at::BFloat16>()),
         kernels.exp_bfloat16, kernels.exp_bfloat16_to_float);
  }
}

void LogprobGradient::write(int64_t first, const at::Tensor& logits, const at::Tensor& out) {
  if (logits.size(-1) == 0) return;
  if (has_row_kernels(logits, shard_) && out.stride(-1) == 1) {
    write_rows(first, logits, out);
  } else {
    out.copy_(block(first, logits));
  }
}

at::Tensor LogprobGradient::block(int64_t first, const at::Tensor& logits) {
  if (logits.size(-1) == 0) return buffer_.part(logits);
  if (has_row_kernels(logits, shard_)) {
    const at::Tensor out = buffer_.part(logits);
    write_rows(first, logits, out);
    return out;
  }
  const int64_t count = logits.size(0);
  const auto rows = [first, count](const at::Tensor& tensor) {
    return tensor.narrow(0, first, count).unsqueeze(-1);
  };
  at::Tensor out = buffer_.shifted(logits, max_.narrow(0, first, count), shard_.temperature);
  out.exp_().mul_(rows(softmax_factor_));
  if (everywhere_.defined()) out.add_(rows(everywhere_));
  out.scatter_add_(-1, rows(target_.column), rows(grad_at_target_));
  const at::Tensor dropped = rows(no_gradient_);
  if (dropped.any().item<bool>()) out.masked_fill_(dropped, 0);
  return out;
}

at::Tensor logits_gradient(const at::Tensor& logits, const VocabShard& shard,
                           LogprobGradient gradient) {
  const at::Tensor out = empty_gradient(logits);
  const int64_t columns = logits.size(-1);
  const at::Tensor rows = out.view({-1, columns});
  for (const RowBlock& block : row_blocks(logits, shard)) {
    gradient.write(block.first, block.logits,
                   rows.narrow(0, block.first, block.count).narrow(1, 0, shard.range.counted));
  }
  rows.narrow(1, shard.range.counted, columns - shard.range.counted).zero_();
  return out;
}

}  // namespace shardproof
