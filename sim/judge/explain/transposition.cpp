// Two dims exchanged.
#include <fmt/format.h>

#include <cmath>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {

std::optional<Proposal> propose_transposition(const Assembled& tensor, const Mesh& /*mesh*/) {
  const size_t dims = tensor.shape.size();
  const double choices = std::log(static_cast<double>(dims * dims));
  for (size_t a = 0; a + 1 < dims; ++a) {
    for (size_t b = a + 1; b < dims; ++b) {
      if (tensor.shape[a] != tensor.shape[b] || tensor.shape[a] < 2) continue;
      const int64_t size = tensor.shape[a];
      const int64_t inner_a = walk_along(tensor.shape, a).inner;
      const int64_t inner_b = walk_along(tensor.shape, b).inner;
      Fit fit(tensor);
      bool going = true;
      for (int64_t e = 0; going && e < static_cast<int64_t>(tensor.actual.size()); ++e) {
        const int64_t i = e / inner_a % size, j = e / inner_b % size;
        going = fit.add(e, e + (j - i) * inner_a + (i - j) * inner_b);
      }
      if (!going || !fit.explains_tensor(choices)) continue;
      return Proposal{.pattern = fmt::format("dims {} and {} are transposed", a, b),
                      .likely = "a transpose is missing or done twice",
                      .description = choices,
                      .parameters = {static_cast<double>(a), static_cast<double>(b)}}
          .explaining(fit.sums(), tensor.wrong);
    }
  }
  return std::nullopt;
}

}  // namespace shardproof::sim::judge
