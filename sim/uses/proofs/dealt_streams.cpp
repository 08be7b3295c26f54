#include "sim/uses/proofs/dealt_streams.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "base/error.h"
#include "observe/draw_log.h"

namespace shardproof::sim::proofs {

struct DealtStreams::Stream {
  std::string name;
  uint64_t seed = 0;
  at::Generator generator;  // made with the first draw
  int64_t offset = 0;
};

namespace {

// Each rank's part of `size`.
int64_t dealt_part(int64_t size, int64_t dim, int64_t ranks, const char* axis) {
  if (size % ranks == 0) return size / ranks;
  throw_bad_input(fmt::format("dim {} of a mask has size {}, which does not divide by {}_ranks "
                              "{}",
                              dim, size, axis, ranks),
                  fmt::format("make it a multiple of {}", ranks));
}

}  // namespace

DealtStreams::DealtStreams(int64_t seed, int64_t tp_ranks, int64_t dp_ranks) : dp_ranks_(dp_ranks) {
  const auto add = [this](const char* name, int64_t from) {
    auto stream = std::make_unique<Stream>();
    stream->name = name;
    stream->seed = static_cast<uint64_t>(from);
    streams_.push_back(std::move(stream));
  };
  add("data-parallel-rng", seed);
  for (int64_t t = 0; t < tp_ranks; ++t) add("model-parallel-rng", seed + 2718 + t);
}

DealtStreams::~DealtStreams() = default;

at::Tensor DealtStreams::keep_from(Stream& stream, std::vector<int64_t> shape, double p) {
  shape[0] = dealt_part(shape[0], 0, dp_ranks_, "dp");
  if (p == 0) {
    const at::Tensor none = draw_tensor({});
    last_draws_ = last_draws_.defined() ? at::cat({last_draws_, none}) : none;
    shape[0] *= dp_ranks_;
    return at::ones(shape, at::kBool);
  }
  if (!stream.generator.defined()) {
    stream.generator = at::detail::createCPUGenerator(stream.seed);
  }
  const int64_t count = c10::multiply_integers(shape);
  const at::Tensor draws = draw_tensor({{.place = "",
                                         .stream = stream.name,
                                         .seed = stream.seed,
                                         .offset = stream.offset,
                                         .count = count,
                                         .state = generator_digest(stream.generator)}});
  last_draws_ = last_draws_.defined() ? at::cat({last_draws_, draws}) : draws;
  stream.offset += count;
  const at::Tensor uniform =
      at::rand(shape, stream.generator, at::TensorOptions().dtype(at::kFloat));
  return at::cat(std::vector<at::Tensor>(static_cast<size_t>(dp_ranks_), uniform.ge(p)));
}

at::Tensor DealtStreams::keep_alike(at::IntArrayRef shape, double p) {
  last_draws_ = at::Tensor();
  return keep_from(*streams_[0], shape.vec(), p);
}

at::Tensor DealtStreams::keep_parts(at::IntArrayRef shape, int64_t dim, double p) {
  last_draws_ = at::Tensor();
  std::vector<int64_t> part = shape.vec();
  int64_t& size = part[static_cast<size_t>(dim)];
  size = dealt_part(size, dim, static_cast<int64_t>(streams_.size()) - 1, "tp");
  std::vector<at::Tensor> parts;
  for (size_t t = 1; t < streams_.size(); ++t) parts.push_back(keep_from(*streams_[t], part, p));
  return at::cat(parts, dim);
}

at::Tensor drop_by(const at::Tensor& x, const at::Tensor& keep, double p) {
  return x * keep.to(x.scalar_type()) * (p < 1 ? 1 / (1 - p) : 0.0);
}

void check_dealt(const Options& options, const Mesh& mesh) {
  for (const char* axis : {"tp", "dp"}) {
    const int64_t dealt_ranks = options[std::string(axis) + "_ranks"];
    if (dealt_ranks == mesh.size(axis)) continue;
    throw_refused(fmt::format("one device makes the masks of {} {} ranks, the mesh has {}",
                              dealt_ranks, axis, mesh.size(axis)),
                  fmt::format("set options.{}_ranks to {}", axis, mesh.size(axis)));
  }
}

}  // namespace shardproof::sim::proofs
