#include "sim/proofs/drawn_weight.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "observe/draw_log.h"
#include "tensor/shard.h"

namespace shardproof::sim {

WeightStream weight_stream(bool expert, int64_t tp_rank) {
  const int64_t seed = kWeightSeed + (expert ? 1024 : 2718) + tp_rank;
  return {.name = expert ? "expert-parallel-rng" : "model-parallel-rng",
          .seed = static_cast<uint64_t>(seed)};
}

DrawnWeight drawn_from_master(const TpLayerSpec& spec) {
  const at::Generator generator = at::detail::createCPUGenerator(kWeightSeed);
  return {.values = at::zeros(spec.weight_shape(), at::kDouble).normal_(0, kWeightStd, generator)};
}

DrawnWeight drawn_from_streams(const TpLayerSpec& spec, int64_t tp_ranks) {
  const Mesh mesh({{"tp", tp_ranks}});
  const Layout layout({Cut::in_blocks(spec.cut_dim(), "tp", spec.blocks())});
  std::vector<at::Tensor> parts, draws;
  for (int64_t rank = 0; rank < tp_ranks; ++rank) {
    const auto shape = layout.local_shape(spec.weight_shape(), mesh, rank);
    const WeightStream stream = weight_stream(spec.expert_parallel, rank);
    const at::Generator generator = at::detail::createCPUGenerator(stream.seed);
    draws.push_back(draw_tensor({{.place = "",
                                  .stream = stream.name,
                                  .seed = stream.seed,
                                  .offset = 0,
                                  .count = c10::multiply_integers(shape),
                                  .state = generator_digest(generator)}}));
    const auto wide = at::TensorOptions().dtype(at::kDouble);
    parts.push_back(at::randn(shape, generator, wide) * kWeightStd);
  }
  return {.values = reassemble(parts, spec.weight_shape(), layout, mesh), .draws = at::cat(draws)};
}

}  // namespace shardproof::sim
