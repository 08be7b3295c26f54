#include "random/rng_seeds.h"

#include <fmt/format.h>

#include <map>
#include <string>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {
namespace {

constexpr int64_t kModelOffset = 2718;
constexpr int64_t kExpertOffset = 1024;
constexpr int64_t kStride = 100;  // of stages and of expert parallel ranks

RngSeeds offsets(const RngPlace& place) {
  const auto at = [](int64_t offset) { return static_cast<uint64_t>(offset); };
  return {.data = at(kStride * place.stage),
          .model = at(kStride * place.stage + kModelOffset + place.tp_rank),
          .expert = at(kStride * (place.stage * place.ep_size + place.ep_rank) + kExpertOffset +
                       place.etp_rank)};
}

// Checks every pair of streams of the mesh, on every rank. Returns the largest difference to the
// seed.
uint64_t check_offsets_differ(RngPlace place) {
  std::map<uint64_t, std::string> taken;
  const auto take = [&](uint64_t offset, const std::string& who) {
    const std::string here =
        place.stages == 1 ? who : fmt::format("{} of stage {}", who, place.stage);
    const auto [there, is_new] = taken.emplace(offset, here);
    if (is_new) return;
    throw_refused(
        fmt::format("the random stream of {} has the seed of that of {}", here, there->second),
        "use fewer ranks: two streams of one seed draw the same");
  };
  for (place.stage = 0; place.stage < place.stages; ++place.stage) {
    take(offsets(place).data, "data parallel ranks");
    for (place.tp_rank = 0; place.tp_rank < place.tp_size; ++place.tp_rank) {
      take(offsets(place).model, fmt::format("tensor parallel rank {}", place.tp_rank));
    }
    for (place.ep_rank = 0; place.ep_rank < place.ep_size; ++place.ep_rank) {
      for (place.etp_rank = 0; place.etp_rank < place.etp_size; ++place.etp_rank) {
        take(offsets(place).expert,
             fmt::format("expert parallel rank {}, expert tensor parallel rank {}", place.ep_rank,
                         place.etp_rank));
      }
    }
  }
  return taken.rbegin()->first;
}

}  // namespace

RngSeeds rng_seeds(int64_t seed, const RngPlace& place) {
  if (seed < 0) {
    throw_bad_input(fmt::format("a seed of {} for random streams", seed), "give one of 0 or more");
  }
  const auto most =
      static_cast<int64_t>(kMaxGeneratorSeed) - static_cast<int64_t>(check_offsets_differ(place));
  if (seed > most) {
    throw_bad_input(
        fmt::format("with a seed of {} for random streams, a rank's seed exceeds the 32 "
                    "bits that a generator takes",
                    seed),
        fmt::format("give one of at most {}", most));
  }
  RngSeeds seeds = offsets(place);
  for (uint64_t* one : {&seeds.data, &seeds.model, &seeds.expert})
    *one += static_cast<uint64_t>(seed);
  return seeds;
}

void seed_streams(RngTracker& tracker, int64_t seed, const RngPlace& place) {
  const RngSeeds seeds = rng_seeds(seed, place);
  tracker.reset();
  tracker.add(kDataParallelRng, seeds.data);
  tracker.add(kModelParallelRng, seeds.model);
  tracker.add(kExpertParallelRng, seeds.expert);
}

}  // namespace shardproof
