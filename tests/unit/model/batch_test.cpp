// Legend: B samples, S positions.
#include "model/batch.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tensor/safetensors.h"
#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"

namespace shardproof {
namespace {

constexpr int64_t kVocabulary = 9;

std::map<std::string, at::Tensor> good_batch() {
  return {{"input_ids", at::tensor({1, 2, 3, 4, 5, 6, 7, 8}, at::kLong).view({2, 4})},
          {"input_lengths", at::tensor({4, 2}, at::kLong)},
          {"token_mask", at::tensor({1., 1., 0., 1., 1., 1., 1., 1.}, at::kDouble).view({2, 4})},
          {"sample_mask", at::tensor({1., 0.5}, at::kDouble)}};
}

// A tensor of the good batch with another value at this element.
at::Tensor changed(const std::string& name, int64_t element, int64_t value) {
  at::Tensor tensor = good_batch().at(name);
  tensor.view({-1})[element] = value;
  return tensor;
}

Batch written_and_loaded(const std::map<std::string, at::Tensor>& tensors) {
  const sim::ScratchFolder folder;
  const std::string path = folder.path() + "/batch.safetensors";
  write_safetensors(path, NamedTensors(tensors.begin(), tensors.end()));
  return load_batch(path, kVocabulary);
}

std::string complaint(const std::map<std::string, at::Tensor>& tensors) {
  return tests::told_by(ErrorKind::kBadInput, [&] { written_and_loaded(tensors); });
}

SeededBatchOptions options() {
  return {
      .batch_size = 5, .seq_len = 13, .lengths = {13, 1, 7, 12, 2}, .vocab_size = 37, .seed = 4};
}

// Row `row` of every tensor of `part` equals row `sample` of `whole`.
void check_row(const Batch& whole, int64_t sample, const Batch& part, int64_t row) {
  for (const BatchTensor& each : kBatchTensors) {
    INFO(each.name << " of sample " << sample);
    CHECK(at::equal((whole.*each.tensor)[sample], (part.*each.tensor)[row]));
  }
}

}  // namespace

TEST_CASE("Of a positive share of counted tokens at least one counts at any seed", "[model]") {
  const auto counted = [](SeededBatchOptions options) {
    options.vocab_size = kVocabulary;
    return seeded_batch(options).loss_mask().sum().item<double>();
  };
  for (int64_t seed = 0; seed < 40; ++seed) {
    INFO("seed " << seed);
    CHECK(counted({.batch_size = 1, .seq_len = 2, .seed = seed}) == 1);
    CHECK(counted({.batch_size = 3,
                   .seq_len = 0,
                   .lengths = {3, 1, 6},
                   .mask_probability = 1e-9,
                   .dropped_samples = {2},
                   .seed = seed}) == 1);
    CHECK(counted({.batch_size = 2, .mask_probability = 0, .seed = seed}) == 0);
    CHECK(counted({.batch_size = 2, .seq_len = 1, .seed = seed}) == 0);
    CHECK(counted({.batch_size = 1, .dropped_samples = {0}, .seed = seed}) == 0);
  }
}

TEST_CASE("The loss mask counts neither the first position nor padding", "[model]") {
  const Batch batch = written_and_loaded(good_batch());
  CHECK(batch.size() == 2);
  CHECK(batch.seq_len() == 4);
  CHECK_FALSE(batch.advantages.defined());
  const at::Tensor wanted = at::tensor({0., 1., 0., 1., 0., 0.5, 0., 0.}, at::kDouble).view({2, 4});
  CHECK(at::equal(batch.loss_mask(), wanted));
}

TEST_CASE("Masks of any dtype and old logprobs in float32 are read as float64", "[model]") {
  auto tensors = good_batch();
  tensors["token_mask"] = tensors["token_mask"].to(at::kBool);
  tensors["sample_mask"] = tensors["sample_mask"].to(at::kFloat);
  for (const char* name : {"prev_logprobs", "reference_logprobs", "advantages"}) {
    tensors[name] = at::full({2, 4}, -1.5, at::kFloat);
  }
  const Batch batch = written_and_loaded(tensors);
  for (const at::Tensor& tensor : {batch.token_mask, batch.sample_mask, batch.prev_logprobs,
                                   batch.reference_logprobs, batch.advantages}) {
    CHECK(tensor.scalar_type() == at::kDouble);
  }
}

TEST_CASE("A malformed batch is bad input, with a sentence", "[model]") {
  const auto [name, tensor, word] = GENERATE(table<std::string, at::Tensor, std::string>({
      {"token_mask", at::Tensor(), "token_mask"},  // missing
      {"input_ids", changed("input_ids", 6, kVocabulary), "input_ids[1, 2]=9 is outside 0..8"},
      {"input_ids", changed("input_ids", 7, -100), "input_ids[1, 3]=-100"},  // in padding
      {"input_lengths", changed("input_lengths", 0, 5), "input_lengths[0]=5 is outside 1..4"},
      {"input_lengths", changed("input_lengths", 1, 0), "input_lengths[1]=0"},
      {"input_ids", at::zeros({0, 4}, at::kLong), "empty"},
      {"input_ids", at::zeros({2, 0}, at::kLong), "empty"},
      {"input_ids", at::zeros({8}, at::kLong), "[B, S]"},
      {"input_ids", at::ones({2, 4}, at::kDouble), "int64"},
      {"token_mask", at::ones({4, 2}, at::kDouble), "[4, 2], not [2, 4]"},
      {"sample_mask", changed("sample_mask", 0, -1), "negative"},
      {"advantages", at::full({2, 4}, std::nan(""), at::kDouble),
       "advantages has a number that is not finite"},
  }));
  auto tensors = good_batch();
  tensors.erase(name);
  if (tensor.defined()) tensors[name] = tensor;
  CHECK_THAT(complaint(tensors), Catch::Contains(word));
}

TEST_CASE("A seeded batch is the same from the same seed and another from another", "[model]") {
  const Batch first = seeded_batch(options()), again = seeded_batch(options());
  SeededBatchOptions changed = options();
  changed.seed = 5;
  const Batch other = seeded_batch(changed);
  CHECK(at::equal(first.input_ids, again.input_ids));
  CHECK(at::equal(first.prev_logprobs, again.prev_logprobs));
  CHECK_FALSE(at::equal(first.input_ids, other.input_ids));
  CHECK_FALSE(at::equal(first.token_mask, other.token_mask));
  CHECK_FALSE(at::equal(first.prev_logprobs, first.reference_logprobs));
}

TEST_CASE("Seeded tokens reach every part of the vocabulary, padding too", "[model]") {
  const Batch batch = seeded_batch(options());
  CHECK(batch.input_ids.flatten().narrow(0, 0, 37).sum().item<int64_t>() == 37 * 36 / 2);
  const at::Tensor padding = batch.input_ids[1].narrow(0, 1, 12);
  CHECK(std::get<0>(at::_unique(padding)).numel() > 6);
  CHECK(at::equal(batch.input_lengths, at::tensor({13, 1, 7, 12, 2}, at::kLong)));
  const double share = batch.token_mask.mean().item<double>();
  CHECK(share > 0.6);
  CHECK(share < 0.95);
}

TEST_CASE("Weights of a seeded mask are quarters up to 2, and 0 stays 0", "[model]") {
  SeededBatchOptions asked = options();
  asked.mask_weights = true;
  const at::Tensor weights = seeded_batch(asked).token_mask;
  CHECK(at::equal(weights.ne(0), seeded_batch(options()).token_mask.ne(0)));
  CHECK(at::equal(weights * 4, (weights * 4).round()));
  CHECK(weights.max().item<double>() == 2);
  CHECK(weights.masked_select(weights.ne(0)).min().item<double>() == 0.25);
}

TEST_CASE("What a seeded batch does not count is huge or not finite when asked for", "[model]") {
  SeededBatchOptions asked = options();
  asked.dropped_samples = {3};
  const Batch plain = seeded_batch(asked);
  asked.masked_not_finite = true;
  const Batch batch = seeded_batch(asked);
  const at::Tensor counted = batch.loss_mask().ne(0);
  for (const auto tensor :
       {&Batch::prev_logprobs, &Batch::reference_logprobs, &Batch::advantages}) {
    const at::Tensor finite = at::isfinite(batch.*tensor), huge = (batch.*tensor).abs().gt(1e250);
    CHECK(at::equal(finite.logical_and(huge.logical_not()), counted));
    CHECK(finite.logical_and(huge).any().item<bool>());
    CHECK((batch.*tensor).isnan().any().item<bool>());
    CHECK((batch.*tensor).isposinf().any().item<bool>());
    CHECK((batch.*tensor).isneginf().any().item<bool>());
    CHECK(
        at::equal((batch.*tensor).masked_select(counted), (plain.*tensor).masked_select(counted)));
  }
}

TEST_CASE("Dropped samples count for nothing; without seq_len the longest length counts",
          "[model]") {
  SeededBatchOptions asked = options();
  asked.dropped_samples = {0, 3};
  asked.seq_len = 0;
  const Batch batch = seeded_batch(asked);
  CHECK(batch.seq_len() == 13);
  CHECK(at::equal(batch.sample_mask, at::tensor({0., 1., 1., 0., 1.}, at::kDouble)));
  CHECK(batch.loss_mask()[3].sum().item<double>() == 0);
}

TEST_CASE("Samples of a batch have all its tensors: neighbours as views, chosen ones as copies",
          "[model][PW-2]") {
  const Batch batch = seeded_batch(options());
  const Batch middle = batch.slice(1, 3);
  REQUIRE(middle.size() == 3);
  for (int64_t row = 0; row < 3; ++row) check_row(batch, 1 + row, middle, row);
  const Batch chosen = batch.select({4, 0, 4});
  REQUIRE(chosen.size() == 3);
  check_row(batch, 4, chosen, 0);
  check_row(batch, 0, chosen, 1);
  check_row(batch, 4, chosen, 2);
  CHECK(middle.advantages.data_ptr() == batch.advantages[1].data_ptr());
  CHECK(chosen.advantages.data_ptr() != batch.advantages[4].data_ptr());
  CHECK(batch.slice(5, 0).size() == 0);
  // A slice has no tensor that the batch lacks.
  const Batch bare = written_and_loaded(good_batch());
  CHECK_FALSE(bare.slice(0, 1).advantages.defined());
  CHECK_FALSE(bare.select({1}).prev_logprobs.defined());
  CHECK(at::equal(bare.select({1}).input_ids, bare.slice(1, 1).input_ids));
}

TEST_CASE("Options of a batch that cannot be are bad input", "[model]") {
  SeededBatchOptions asked = options();
  SECTION("batch size") { asked.batch_size = 0; }
  SECTION("sequence") { asked.seq_len = -1; }
  SECTION("count of lengths") { asked.lengths.pop_back(); }
  SECTION("a length") { asked.lengths[2] = 14; }
  SECTION("a zero length") { asked.lengths[2] = 0; }
  SECTION("a dropped sample") { asked.dropped_samples = {5}; }
  SECTION("a probability") { asked.mask_probability = 1.5; }
  SECTION("NaN") { asked.mask_probability = std::nan(""); }
  SECTION("vocabulary") { asked.vocab_size = 0; }
  SECTION("too large") {
    asked.batch_size = int64_t{1} << 40;
    asked.lengths.clear();
  }
  CHECK_THROWS_AS(seeded_batch(asked), Error);
}

}  // namespace shardproof
