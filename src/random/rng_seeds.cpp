#include "random/rng_seeds.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {
namespace {

constexpr int64_t kModelOffset = 2718;
constexpr int64_t kExpertOffset = 1024;
constexpr int64_t kExpertStride = 100;

[[noreturn]] void refuse_mesh(std::string what) {
  throw_refused(std::move(what),
                "use fewer expert parallel ranks: two streams of one seed draw the same");
}

// The largest difference to the seed on any rank of the mesh.
int64_t largest_offset(const RngPlace& place) {
  return std::max(kModelOffset + place.tp_size - 1,
                  kExpertOffset + kExpertStride * (place.ep_size - 1) + place.etp_size - 1);
}

// Checks every pair of ranks of the mesh, on every rank.
void check_seeds_differ(const RngPlace& place) {
  if (place.etp_size > kExpertStride) {
    refuse_mesh(fmt::format(
        "with {} expert tensor parallel ranks, rank {} of one expert parallel rank has the expert "
        "seed of rank 0 of the next",
        place.etp_size, kExpertStride));
  }
  for (int64_t ep = 0; ep < place.ep_size; ++ep) {
    for (int64_t etp = 0; etp < place.etp_size; ++etp) {
      const int64_t tp = kExpertOffset + kExpertStride * ep + etp - kModelOffset;
      if (tp < 0 || tp >= place.tp_size) continue;
      refuse_mesh(fmt::format(
          "the expert seed of expert parallel rank {}, expert tensor parallel rank {} is that of "
          "tensor parallel rank {}",
          ep, etp, tp));
    }
  }
}

}  // namespace

RngSeeds rng_seeds(int64_t seed, const RngPlace& place) {
  if (seed < 0) {
    throw_bad_input(fmt::format("a seed of {} for random streams", seed), "give one of 0 or more");
  }
  check_seeds_differ(place);
  const int64_t most = static_cast<int64_t>(kMaxGeneratorSeed) - largest_offset(place);
  if (seed > most) {
    throw_bad_input(
        fmt::format("with a seed of {} for random streams, a rank's seed exceeds the 32 "
                    "bits that a generator takes",
                    seed),
        fmt::format("give one of at most {}", most));
  }
  const auto base = static_cast<uint64_t>(seed);
  return {.data = base,
          .model = base + kModelOffset + static_cast<uint64_t>(place.tp_rank),
          .expert = base + kExpertOffset + kExpertStride * static_cast<uint64_t>(place.ep_rank) +
                    static_cast<uint64_t>(place.etp_rank)};
}

void seed_streams(RngTracker& tracker, int64_t seed, const RngPlace& place) {
  const RngSeeds seeds = rng_seeds(seed, place);
  tracker.reset();
  tracker.add(kDataParallelRng, seeds.data);
  tracker.add(kModelParallelRng, seeds.model);
  tracker.add(kExpertParallelRng, seeds.expert);
}

}  // namespace shardproof
