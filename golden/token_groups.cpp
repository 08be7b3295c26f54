#include "golden/token_groups.h"

namespace shardproof::golden {

Dealt deal_samples(const sim::CaseSpec& spec, int64_t samples) {
  const int64_t together = spec.loss.kind == LossKind::kPreference ? 2 : 1;
  const int64_t shares = spec.parallel.ranks(Share::kSamples);
  Dealt dealt;
  for (int64_t share = 0; share < shares; ++share) {
    const int64_t units = samples / together;
    const int64_t count = (units / shares + (share < units % shares ? 1 : 0)) * together;
    for (int64_t i = 0; i < count; ++i) {
      dealt.share.push_back(share);
      dealt.microbatch.push_back(spec.micro_batch_size > 0 ? i / spec.micro_batch_size : 0);
    }
  }
  return dealt;
}

std::vector<int64_t> ranks_of_positions(const sim::ParallelSpec& parallel, int64_t seq_len) {
  const int64_t cp = parallel.cp, ulysses = parallel.ulysses;
  const int64_t tp = parallel.sequence_parallel ? parallel.tp : 1;
  const bool zigzag = cp > 1 && parallel.context_layout == ContextLayout::kZigzag;
  const int64_t chunks = zigzag ? 2 * cp : cp, multiple = chunks * ulysses * tp;
  const int64_t length = (seq_len + multiple - 1) / multiple * multiple;
  const int64_t chunk = length / chunks, part = length / (cp * ulysses * tp);
  std::vector<int64_t> ranks(static_cast<size_t>(length));
  for (int64_t rank = 0; rank < cp; ++rank) {
    // The positions of this rank of cp, in its order.
    std::vector<int64_t> held;
    for (int64_t i = 0; i < chunk; ++i) held.push_back(rank * chunk + i);
    for (int64_t i = 0; zigzag && i < chunk; ++i) held.push_back((chunks - 1 - rank) * chunk + i);
    for (size_t i = 0; i < held.size(); ++i) {
      ranks[static_cast<size_t>(held[i])] = rank * ulysses * tp + static_cast<int64_t>(i) / part;
    }
  }
  ranks.resize(static_cast<size_t>(seq_len));
  return ranks;
}

}  // namespace shardproof::golden
