#include "golden/kept_streams.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "base/seed.h"
#include "observe/draw_log.h"

namespace shardproof::golden {
namespace {

constexpr int64_t kPartsOffset = 2718;
constexpr const char* kAlike = "data-parallel-rng";
constexpr const char* kParts = "model-parallel-rng";

}  // namespace

KeptStreams::KeptStreams(int64_t seed, int64_t tp_size)
    : alike_({.name = kAlike, .seed = static_cast<uint64_t>(seed)}) {
  for (int64_t rank = 0; rank < tp_size; ++rank) {
    parts_.push_back({.name = kParts, .seed = static_cast<uint64_t>(seed + kPartsOffset + rank)});
  }
}

// Draws all earlier numbers again: a stream is its seed and its offset.
at::Tensor KeptStreams::draw(Stream& stream, int64_t count) {
  const auto generator = at::detail::createCPUGenerator(stream.seed);
  at::rand({stream.offset}, generator, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor drawn = draw_tensor({{.place = "",
                                         .stream = stream.name,
                                         .seed = stream.seed,
                                         .offset = stream.offset,
                                         .count = count,
                                         .state = generator_digest(generator)}});
  stream.offset += count;
  return drawn;
}

at::Tensor KeptStreams::draw_alike(int64_t count) { return draw(alike_, count); }

at::Tensor KeptStreams::draw_parts(int64_t count) {
  std::vector<at::Tensor> drawn;
  for (Stream& part : parts_) drawn.push_back(draw(part, count));
  return at::cat(drawn);
}

void KeptStreams::load(int64_t tp_size, int64_t step) {
  const auto saved = static_cast<int64_t>(parts_.size());
  if (saved == tp_size) return;
  const Stream first = parts_.front();
  parts_.assign(static_cast<size_t>(tp_size), first);
  if (saved == 1) return;  // all ranks had the same part
  for (int64_t rank = 0; rank < tp_size; ++rank) {
    const std::string anew =
        fmt::format("{} from step {} on rank {} of {}", kParts, step, rank, tp_size);
    parts_[static_cast<size_t>(rank)] = {
        .name = kParts, .seed = generator_seed(static_cast<int64_t>(first.seed), anew)};
  }
}

}  // namespace shardproof::golden
