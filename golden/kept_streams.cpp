#include "golden/kept_streams.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include "base/seed.h"
#include "observe/draw_log.h"

namespace shardproof::golden {
namespace {

constexpr int64_t kPartsOffset = 2718, kStageOffset = 100;

}  // namespace

KeptStreams::KeptStreams(int64_t seed, int64_t stages, int64_t tp_size)
    : alike_({.name = "data-parallel-rng"}), parts_({.name = "model-parallel-rng"}) {
  for (int64_t stage = 0; stage < stages; ++stage) {
    const int64_t first = seed + kStageOffset * stage;
    alike_.of.push_back({{.seed = static_cast<uint64_t>(first)}});
    parts_.of.emplace_back();
    for (int64_t rank = 0; rank < tp_size; ++rank) {
      parts_.of.back().push_back({.seed = static_cast<uint64_t>(first + kPartsOffset + rank)});
    }
  }
}

// Draws all earlier numbers again: a stream is its seed and its offset.
at::Tensor KeptStreams::Streams::draw(int64_t count) {
  std::vector<at::Tensor> drawn;
  for (std::vector<Stream>& stage : of) {
    for (Stream& stream : stage) {
      const auto generator = at::detail::createCPUGenerator(stream.seed);
      at::rand({stream.offset}, generator, at::TensorOptions().dtype(at::kFloat));
      drawn.push_back(draw_tensor({{.place = "",
                                    .stream = name,
                                    .seed = stream.seed,
                                    .offset = stream.offset,
                                    .count = count,
                                    .state = generator_digest(generator)}}));
      stream.offset += count;
    }
  }
  return at::cat(drawn);
}

at::Tensor KeptStreams::draw_alike(int64_t count) { return alike_.draw(count); }

at::Tensor KeptStreams::draw_parts(int64_t count) { return parts_.draw(count); }

void KeptStreams::Streams::load(int64_t stages, int64_t ranks, int64_t step) {
  const auto saved = of;
  const auto old_stages = std::ssize(saved), old_ranks = std::ssize(saved.front());
  bool stages_differ = false, ranks_differ = false;
  for (const auto& stage : saved) {
    for (size_t rank = 0; rank < stage.size(); ++rank) {
      stages_differ = stages_differ || stage[rank] != saved.front()[rank];
      ranks_differ = ranks_differ || stage[rank] != stage.front();
    }
  }
  const bool anew = (stages_differ && stages != old_stages) || (ranks_differ && ranks != old_ranks);
  of.assign(static_cast<size_t>(stages), std::vector<Stream>(static_cast<size_t>(ranks)));
  for (int64_t stage = 0; stage < stages; ++stage) {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      Stream& stream = of[static_cast<size_t>(stage)][static_cast<size_t>(rank)];
      const int64_t old_stage = stages_differ ? stage : 0, old_rank = ranks_differ ? rank : 0;
      if (!anew) {
        stream = saved[static_cast<size_t>(old_stage)][static_cast<size_t>(old_rank)];
        continue;
      }
      std::string text = fmt::format("{} from step {}", name, step);
      if (ranks_differ) text += fmt::format(" on rank {} of {}", rank, ranks);
      if (stages_differ) text += fmt::format(" on stage {} of {}", stage, stages);
      stream.seed = generator_seed(static_cast<int64_t>(saved.front().front().seed), text);
    }
  }
}

void KeptStreams::load(int64_t stages, int64_t tp_size, int64_t step) {
  alike_.load(stages, 1, step);
  parts_.load(stages, tp_size, step);
}

}  // namespace shardproof::golden
