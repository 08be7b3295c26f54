// Extra heads of a decoder on one device, as a whole and in chunks.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "mesh/mesh.h"
#include "model/decoder.h"
#include "tests/unit/model/recorder.h"
#include "tests/unit/model/six_head_model.h"

namespace shardproof::extra_heads_test {
namespace {

using namespace tests;

ModelConfig with_two_heads() {
  ModelConfig config = tests::six_head_model();
  config.family = "llama_mtp";
  config.extra_heads = 2;
  return config;
}

// Head 1 reads the ids in reverse, head 2 as they are.
StepContext context_of_heads(const at::Tensor& ids, Probe& probe) {
  return {.probe = probe,
          .step = 1,
          .token_map = at::arange(ids.numel(), at::kLong).view(ids.sizes()),
          .positions = at::arange(ids.size(1), at::kLong).expand_as(ids),
          .further_ids = at::stack({ids.flip(1), ids})};
}

}  // namespace

TEST_CASE("Extra heads run where they have ids, behind the stream of the model", "[model][PP-29]") {
  const ModelConfig config = with_two_heads();
  Decoder model = ready(config);
  CHECK(model.parameters().size() == weight_shapes(config).size());
  const at::Tensor ids = some_ids();
  Recorder without, with;
  StepContext plain = context_of_heads(ids, without);
  plain.further_ids = at::Tensor();
  const at::Tensor logits = model.forward(ids, plain);
  CHECK(without.find("model.layers.2.eh_proj.output") == nullptr);
  const at::Tensor all = model.forward(ids, context_of_heads(ids, with));
  CHECK(with.seen.size() == model.slots().size());
  REQUIRE(all.sizes() == at::IntArrayRef({3, 3 * 5, 23}));
  CHECK(at::equal(all.narrow(1, 0, 5), logits));
  const at::Tensor embedding = model.slot("model.embed_tokens").layer->parameters()[0]->tensor;
  CHECK(at::equal(with.find("model.layers.2.embed_tokens.output")->tensor,
                  at::embedding(embedding, ids.flip(1))));
  CHECK(at::equal(with.find("model.layers.3.embed_tokens.output")->tensor,
                  at::embedding(embedding, ids)));
}

TEST_CASE("A repeated layer has one set of parameters, and the gradients of all heads",
          "[model][PP-29]") {
  ModelConfig config = with_two_heads();
  Decoder apart(config, seeded_weights(config, 3));
  config.repeats_extra_layer = true;
  CHECK(config.layers_with_weights() == 3);
  Decoder model = ready(config);
  CHECK(weight_shapes(config).count("model.layers.3.eh_proj.weight") == 0);
  CHECK(model.parameters().size() == weight_shapes(config).size());
  CHECK(model.slots().size() == apart.slots().size());
  const Slot &first = model.slot("model.layers.2.eh_proj"),
             &second = model.slot("model.layers.3.eh_proj");
  const ParameterPtr weight = first.layer->parameters()[0];
  CHECK(second.layer->parameters()[0] == weight);
  // The same weights in two layers: their gradients are the addends.
  WeightMap twice = *seeded_weights(config, 3);
  for (const auto& [name, tensor] : WeightMap(twice)) {
    if (name.starts_with("model.layers.2.")) twice["model.layers.3." + name.substr(15)] = tensor;
  }
  config.repeats_extra_layer = false;
  Decoder copies(config, std::make_shared<WeightMap>(twice));
  copies.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  const at::Tensor ids = some_ids();
  NoProbe nobody;
  for (Decoder* each : {&model, &copies}) {
    const at::Tensor logits = each->forward(ids, context_of_heads(ids, nobody));
    (logits * uneven_like(logits)).sum().backward();
  }
  const auto grad_in_copies = [&](const std::string& slot) {
    return copies.slot(slot).layer->parameters()[0]->tensor.grad();
  };
  CHECK(at::allclose(
      weight->tensor.grad(),
      grad_in_copies("model.layers.2.eh_proj") + grad_in_copies("model.layers.3.eh_proj"), 1e-12));
}

TEST_CASE("Extra heads in a chunk of their own give the bits of the whole model",
          "[model][PP-30]") {
  const ModelConfig config = with_two_heads();
  Decoder whole = ready(config), parts(config, seeded_weights(config, 3));
  std::vector<Segment> layers = parts.segments();
  const Segment head = layers.back();
  layers.resize(layers.size() - 3);
  const Segment one{Segment::Part::kExtraHead, 2}, two{Segment::Part::kExtraHead, 3};
  parts.set_chunks({layers, {one, two}, {head}});
  parts.materialise(Mesh(), 0, at::kDouble, at::kCPU);
  const at::Tensor ids = some_ids();
  NoProbe nobody;
  const StepContext context = context_of_heads(ids, nobody);
  at::Tensor x = ids;
  for (int64_t chunk = 0; chunk < 3; ++chunk) x = parts.forward(chunk, x, context);
  const at::Tensor logits = whole.forward(ids, context);
  CHECK(at::equal(x, logits));
  x.backward(uneven_like(x));
  logits.backward(uneven_like(logits));
  for (size_t i = 0; i < parts.parameters().size(); ++i) {
    INFO(parts.parameters()[i]->name);
    CHECK(at::equal(parts.parameters()[i]->tensor.grad(), whole.parameters()[i]->tensor.grad()));
  }
}

}  // namespace shardproof::extra_heads_test
