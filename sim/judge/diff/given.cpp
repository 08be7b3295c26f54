#include "sim/judge/diff/given.h"

#include <fmt/format.h>

namespace shardproof::sim::judge {

std::string not_given(const GoldenTensor& golden, const IndexPlan& plan) {
  if (!golden.given.defined()) return "";
  const uint8_t* givers = golden.given.data<uint8_t>();
  int64_t lacking = 0;
  uint8_t usual = 0;
  plan.for_each_run([&](int64_t, int64_t offset, int64_t length) {
    for (int64_t i = offset; i < offset + length; ++i) {
      if (usual == 0) usual = givers[i];
      lacking += givers[i] == 0 || givers[i] != usual;
    }
  });
  if (lacking == 0) return "";
  return fmt::format("the reference's ranks did not give {} of these {} elements", lacking,
                     plan.count);
}

}  // namespace shardproof::sim::judge
