#include "model/region.h"

namespace shardproof {

at::Tensor Region::run(const at::Tensor& x, const StepContext& context,
                       const RegionBody& body) const {
  RegionBody outermost = body;
  for (const auto& wrap : wraps_) {
    outermost = [around = wrap.get(), inner = std::move(outermost)](const at::Tensor& input,
                                                                    const StepContext& step) {
      return around->run(input, step, inner);
    };
  }
  return outermost(x, context);
}

}  // namespace shardproof
