#include "sequence/packing.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/layout.h"
#include "sequence/cu_seqlens.h"

namespace shardproof {
namespace {

// rows[index[i]], or `value` where index[i] is the number of rows. `rows` is [R, ..].
at::Tensor select_or(const at::Tensor& rows, const std::vector<int64_t>& index, double value) {
  std::vector<int64_t> one(rows.sizes().begin(), rows.sizes().end());
  one[0] = 1;
  return at::cat({rows, at::full(one, value, rows.options())})
      .index_select(0, at::tensor(index, at::kLong).to(rows.device()));
}

struct Place {
  int64_t start, length, padded_length;
};

Place place_of(const Pack& plan, int64_t sequence) {
  const auto i = static_cast<size_t>(sequence);
  return {.start = plan.cu_seqlens_padded[i],
          .length = plan.cu_seqlens[i + 1] - plan.cu_seqlens[i],
          .padded_length = plan.cu_seqlens_padded[i + 1] - plan.cu_seqlens_padded[i]};
}

// One number per position of the row, from its sequence and the position within it.
template <class Value>
at::Tensor per_position(const Pack& plan, const Value& value) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < plan.num_sequences(); ++i) {
    const Place place = place_of(plan, i);
    for (int64_t t = 0; t < place.padded_length; ++t) out.push_back(value(i, place, t));
  }
  return at::tensor(out, at::kLong).unsqueeze(0);
}

}  // namespace

SequenceLayout Pack::layout(int64_t cp_size, ContextLayout kind) const {
  return SequenceLayout::packed(cu_seqlens, cu_seqlens_padded, cp_size, kind);
}

Pack make_pack(const std::vector<int64_t>& samples, const std::vector<int64_t>& lengths,
               int64_t sequence_multiple, int64_t row_multiple, int64_t row_length) {
  if (samples.empty()) {
    throw_bad_input("an empty pack: no sequence", "give at least one");
  }
  SHARDPROOF_ASSERT(sequence_multiple >= 1 && row_multiple % sequence_multiple == 0,
                    "a row is padded to a multiple of what its sequences are padded to");
  std::vector<int64_t> own;
  for (const int64_t sample : samples) own.push_back(lengths.at(static_cast<size_t>(sample)));
  Pack plan{.samples = samples,
            .cu_seqlens = cu_seqlens_of(own),
            .cu_seqlens_padded = cu_seqlens_of(own, sequence_multiple)};
  plan.cu_seqlens_padded.back() =
      round_up(std::max(plan.cu_seqlens_padded.back(), row_length), row_multiple);
  return plan;
}

at::Tensor pack(const at::Tensor& padded, const Pack& plan, double value) {
  const int64_t batch = padded.size(0), seq_len = padded.size(1);
  std::vector<int64_t> index(static_cast<size_t>(plan.num_positions()), batch * seq_len);
  for (int64_t i = 0; i < plan.num_sequences(); ++i) {
    const Place place = place_of(plan, i);
    const int64_t sample = plan.samples[static_cast<size_t>(i)];
    if (place.length > seq_len) {
      throw_bad_input(fmt::format("sample {} has {} tokens in a batch of {} positions", sample,
                                  place.length, seq_len),
                      "give lengths of at most the batch's positions");
    }
    for (int64_t t = 0; t < place.length; ++t) {
      index[static_cast<size_t>(place.start + t)] = sample * seq_len + t;
    }
  }
  return select_or(padded.flatten(0, 1), index, value).unsqueeze(0);
}

at::Tensor unpack(const at::Tensor& row, const Pack& plan, int64_t seq_len, double value) {
  SHARDPROOF_ASSERT(row.size(0) == 1 && row.size(1) == plan.num_positions(), "the packed row");
  const int64_t count = plan.num_sequences();
  std::vector<int64_t> index(static_cast<size_t>(count * seq_len), plan.num_positions());
  for (int64_t i = 0; i < count; ++i) {
    const Place place = place_of(plan, i);
    for (int64_t t = 0; t < std::min(place.length, seq_len); ++t) {
      index[static_cast<size_t>(i * seq_len + t)] = place.start + t;
    }
  }
  return select_or(row.squeeze(0), index, value).unflatten(0, {count, seq_len});
}

at::Tensor packed_positions(const Pack& plan) {
  return per_position(plan, [](int64_t, const Place&, int64_t t) { return t; });
}

at::Tensor packed_sequence_ids(const Pack& plan) {
  return per_position(plan, [](int64_t i, const Place&, int64_t) { return i; });
}

at::Tensor packed_next(const Pack& plan) {
  return per_position(plan, [](int64_t, const Place& place, int64_t t) {
    return t + 1 < place.length ? place.start + t + 1 : int64_t{-1};
  });
}

}  // namespace shardproof
