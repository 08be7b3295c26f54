#include "comm/shared_failure.h"

#include <ATen/ATen.h>

namespace shardproof {

void throw_together(Communicator& group, const std::optional<Error>& failure,
                    std::string_view label) {
  const at::Tensor failed = at::full({}, failure ? 1.0 : 0.0, at::kDouble);
  const bool one_failed = group.all_reduce(failed, ReduceOp::kMax, label).item<double>() != 0;
  if (failure) throw *failure;
  if (!one_failed) return;
  throw_bad_input("another rank could not go on", "look at how it ended");
}

}  // namespace shardproof
