// The loss of an extra head: which tokens count, and over what it is a mean.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <limits>

#include "train/batching.h"
#include "train/ids_ahead.h"
#include "train/loss.h"

namespace shardproof {
namespace {

TEST_CASE("A head counts the tokens that it predicts, and those alone", "[train][PP-29]") {
  // Two sequences of 5 and 2 tokens; the first token of each is never predicted.
  const at::Tensor mask =
      at::tensor({0., 1., 1., .5, 1., 0., 1., 0., 0., 0.}, at::kDouble).view({2, 5});
  CHECK(at::equal(mask_of_head(mask, 1),
                  at::tensor({0., 0., 1., .5, 1., 0., 0., 0., 0., 0.}, at::kDouble).view({2, 5})));
  const LossCounts counts = counts_of(mask, /*extra_heads=*/4);
  CHECK(counts.tokens == 4.5);
  CHECK(counts.tokens_of_heads == std::vector<double>{2.5, 1.5, 1, 0});
}

TEST_CASE("The loss of a head is a mean over its own tokens, and 0 without any", "[train][PP-29]") {
  const at::Tensor mask = at::tensor({0., 1., 1., 1.}, at::kDouble).view({1, 4});
  const LossCounts counts = counts_of(mask, /*extra_heads=*/3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor logprobs = at::tensor({nan, nan, -3., -8.}, at::kDouble).view({1, 4}).requires_grad_();
  const at::Tensor loss = head_loss_addend(logprobs, mask, 1, counts);
  CHECK(loss.item<double>() == (3 + 8) / 2.);
  loss.backward();
  CHECK(at::equal(logprobs.grad(), at::tensor({0., 0., -.5, -.5}, at::kDouble).view({1, 4})));
  logprobs = at::full({1, 4}, nan, at::kDouble).requires_grad_();
  const at::Tensor none = head_loss_addend(logprobs, mask, 3, counts);
  CHECK(none.item<double>() == 0);
  none.backward();
  CHECK(at::equal(logprobs.grad(), at::zeros({1, 4}, at::kDouble)));
}

TEST_CASE("Ids ahead stay within their sequence", "[train][PP-29]") {
  Batch batch = seeded_batch({.batch_size = 2, .seq_len = 4, .lengths = {4, 2}, .vocab_size = 9});
  batch.input_ids = at::tensor({1, 2, 3, 4, 5, 6, 7, 8}, at::kLong).view({2, 4});
  const auto rows = deal_batches(batch, 1, 0, {}, {});
  CHECK(ids_ahead(rows.at(0), 0).empty());
  const auto ahead = ids_ahead(rows.at(0), 2);
  CHECK(at::equal(ahead[0], at::tensor({2, 3, 4, 0, 6, 0, 0, 0}, at::kLong).view({2, 4})));
  CHECK(at::equal(ahead[1], at::tensor({3, 4, 0, 0, 0, 0, 0, 0}, at::kLong).view({2, 4})));
  const auto packed = deal_batches(batch, 1, 0, {.kind = BatchingKind::kPacked}, {3, 3});
  REQUIRE(packed.at(0).plan);
  CHECK(packed[0].plan->cu_seqlens_padded == std::vector<int64_t>{0, 6, 9});
  CHECK(at::equal(ids_ahead(packed[0], 2)[0],
                  at::tensor({2, 3, 4, 0, 0, 0, 6, 0, 0}, at::kLong).view({1, 9})));
}

std::string list_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.to(at::kDouble).contiguous().view({-1});
  return fmt::format(
      "[{}]", fmt::join(flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel(), ","));
}

// For tests/frameworks/mtp_rolls_test.py: what heads read and predict in drawn microbatches, a line
// of JSON each. Masks are those of the tokens at each place of the row.
TEST_CASE("print what heads read and predict", "[.print]") {
  constexpr int64_t kHeads = 3;
  at::manual_seed(35);
  for (int64_t seed = 0; seed < 200; ++seed) {
    const at::Tensor drawn = at::randint(1, 10, {5}, at::kLong);
    const Batch batch = seeded_batch(
        {.batch_size = 5,
         .seq_len = 9,
         .lengths = {drawn.data_ptr<int64_t>(), drawn.data_ptr<int64_t>() + drawn.numel()},
         .mask_weights = seed % 3 == 0,
         .vocab_size = 23,
         .seed = seed});
    const BatchingKind kind = seed % 4 == 3 ? BatchingKind::kFixed : BatchingKind::kPacked;
    const SequencePadding padding = seed % 2 == 0 ? SequencePadding{} : SequencePadding{4, 8};
    for (const Microbatch& micro : deal_batches(batch, 1, 0, {.kind = kind}, padding)) {
      const at::Tensor place = micro.token_map.clamp_min(0);
      const auto in_row = [&](const at::Tensor& mask) {
        const at::Tensor row = mask.view({-1}).index({place.view({-1})}).view_as(place);
        return list_of(row.masked_fill(micro.token_map.lt(0), 0));
      };
      std::vector<std::string> ahead, masks;
      for (const at::Tensor& ids : ids_ahead(micro, 1 + kHeads)) ahead.push_back(list_of(ids));
      const at::Tensor mask = batch.loss_mask();
      for (int64_t depth = 0; depth <= kHeads; ++depth) {
        masks.push_back(in_row(depth == 0 ? mask : mask_of_head(mask, depth)));
      }
      const std::vector<int64_t> whole = {0, micro.input_ids.size(1)};
      fmt::print(
          "{{\"rows\": {}, \"packed\": {}, \"borders\": [{}], \"real\": {}, \"ids\": {}, "
          "\"ahead\": [{}], \"masks\": [{}], \"counts\": [{}]}}\n",
          micro.input_ids.size(0), micro.plan.has_value(),
          fmt::join(micro.plan ? micro.plan->cu_seqlens_padded : whole, ","),
          list_of(micro.token_map.ge(0)), list_of(micro.input_ids), fmt::join(ahead, ","),
          fmt::join(masks, ","), fmt::join(counts_of(mask, kHeads).tokens_of_heads, ","));
    }
  }
}

}  // namespace
}  // namespace shardproof
