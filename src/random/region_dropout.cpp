#include "random/region_dropout.h"

namespace shardproof {

at::Tensor region_dropout(const at::Tensor& x, double p, HeldOverTp held, RngTracker& rng,
                          std::string_view place) {
  if (held == HeldOverTp::kAlike) return dropout(x, p, rng, place);
  const RngTracker::Fork region = rng.fork(kModelParallelRng);
  return dropout(x, p, rng, place);
}

}  // namespace shardproof
