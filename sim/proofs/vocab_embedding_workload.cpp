#include "sim/proofs/vocab_embedding_workload.h"

#include <ATen/ATen.h>

#include "parallel/tp/vocab_embedding.h"

namespace shardproof::sim {
namespace {

WorkloadTensors embedding_inputs(Draw& draw, const Options& options) {
  const int64_t vocab = options["vocab_size"], width = options["width"];
  return {{"ids", draw.integers(vocab, {options["samples"], options["tokens"]}),
           Layout({Cut::even(0, "dp")})},
          {"weight", draw.normal({vocab, width}), Layout({Cut::even(0, "tp")}), {"dp"}}};
}

WorkloadTensors plain_embedding(const TensorsByName& full, const Options& options) {
  const at::Tensor y = full.at("weight").index({full.at("ids")});
  return {{"y", options["reduce_scatter"] ? y.transpose(0, 1) : y}};
}

WorkloadTensors sharded_embedding(const TensorsByName& local, MeshComm& comm,
                                  const Options& options) {
  VocabEmbedding layer({.label = "vocab_parallel_embedding",
                        .num_embeddings = options["vocab_size"],
                        .embedding_dim = options["width"],
                        .reduce_scatter = options["reduce_scatter"],
                        .deterministic = options["deterministic"],
                        .dtype = local.at("weight").scalar_type()},
                       comm.along("tp"));
  layer.weight().tensor = local.at("weight");
  const Layout scattered({Cut::even(0, "tp"), Cut::even(1, "dp")});
  return {{"y", layer.forward(local.at("ids")),
           options["reduce_scatter"] ? scattered : Layout({Cut::even(0, "dp")})}};
}

}  // namespace

Workload vocab_embedding_workload() {
  return {.name = "vocab_parallel_embedding",
          .about = "rows of a token embedding cut over tp, samples over dp",
          .options = {{"samples", 4},
                      {"tokens", 12},
                      {"vocab_size", 36},
                      {"width", 5},
                      {"reduce_scatter", false},
                      {"deterministic", false}},
          .inputs = embedding_inputs,
          .plain = plain_embedding,
          .sharded = sharded_embedding};
}

}  // namespace shardproof::sim
