// The decoder computes each sequence of a packed row as if it were alone.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "mesh/mesh.h"
#include "model/decoder.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::packed_attention_test {
namespace {

ModelConfig small(const std::string& family) {
  ModelConfig config = tests::six_head_model();
  config.family = family;
  if (family == "llama") return config;
  config.sliding_window = 3;  // shorter than some sequences, longer than others
  config.sliding_layers = {true, false};
  config.rope_local_theta = 30;
  return config;
}

const std::vector<int64_t> kLengths = {5, 1, 7, 2};

// Positions that restart, sequence ids and token ids of one packed row.
struct Row {
  at::Tensor ids, positions, sequences;
};

Row packed_row() {
  std::vector<at::Tensor> positions, sequences;
  for (size_t i = 0; i < kLengths.size(); ++i) {
    positions.push_back(at::arange(kLengths[i], at::kLong));
    sequences.push_back(at::full({kLengths[i]}, static_cast<int64_t>(i), at::kLong));
  }
  return {.ids = (at::arange(15, at::kLong) * 7 % 23).unsqueeze(0),
          .positions = at::cat(positions).unsqueeze(0),
          .sequences = at::cat(sequences)};
}

at::Tensor logits_of(Decoder& model, const Row& row) {
  NoProbe nobody;
  return model.forward(
      row.ids, {.probe = nobody, .positions = row.positions, .sequence_ids = row.sequences});
}

Decoder ready(const std::string& family = "llama") {
  Decoder model(small(family), seeded_weights(small(family), 3));
  model.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  return model;
}

TEST_CASE("a packed row gives the logits and gradients of its sequences alone", "[packing]") {
  const std::string family = GENERATE("llama", "gemma3");
  Decoder packed = ready(family), alone = ready(family);
  const Row row = packed_row();
  const at::Tensor together = logits_of(packed, row);
  const at::Tensor grad = at::arange(together.numel(), at::kDouble).sin().view(together.sizes());
  together.backward(grad);
  int64_t start = 0;
  for (const int64_t length : kLengths) {
    const at::Tensor logits = logits_of(alone, {.ids = row.ids.narrow(1, start, length),
                                                .positions = row.positions.narrow(1, start, length),
                                                .sequences = {}});
    CHECK((logits - together.narrow(1, start, length)).abs().max().item<double>() < 1e-13);
    logits.backward(grad.narrow(1, start, length));
    start += length;
  }
  const auto of_packed = packed.parameters(), of_alone = alone.parameters();
  for (size_t i = 0; i < of_packed.size(); ++i) {
    INFO(of_packed[i]->name);
    const at::Tensor golden = of_alone[i]->tensor.grad();
    CHECK((golden - of_packed[i]->tensor.grad()).abs().max().item<double>() <=
          1e-12 * golden.abs().max().item<double>());
  }
}

TEST_CASE("another neighbour in the row changes not one bit of a sequence", "[packing]") {
  Decoder model = ready();
  const Row row = packed_row();
  Row changed = row;
  changed.ids = row.ids.clone();
  changed.ids.narrow(1, 6, 7).add_(5).remainder_(23);
  const at::Tensor before = logits_of(model, row), after = logits_of(model, changed);
  CHECK(before.narrow(1, 0, 6).equal(after.narrow(1, 0, 6)));
  CHECK(before.narrow(1, 13, 2).equal(after.narrow(1, 13, 2)));
  CHECK_FALSE(before.narrow(1, 6, 7).equal(after.narrow(1, 6, 7)));
}

}  // namespace
}  // namespace shardproof::packed_attention_test
