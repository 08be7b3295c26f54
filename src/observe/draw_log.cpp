#include "observe/draw_log.h"

#include <ATen/ATen.h>

#include "base/seed.h"

namespace shardproof {

uint64_t generator_digest(const at::Generator& generator) {
  const at::Tensor state = generator.get_state();
  const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
  return stream_seed(0, bytes) & kExactDrawBits;
}

at::Tensor draw_tensor(const std::vector<RandomDraw>& draws) {
  const auto count = static_cast<int64_t>(draws.size());
  at::Tensor out = at::empty({1, count, kDrawColumns}, at::kLong);
  int64_t* cell = out.mutable_data_ptr<int64_t>();
  for (const RandomDraw& draw : draws) {
    *cell++ = stream_id(draw.stream);
    *cell++ = static_cast<int64_t>(draw.seed & kExactDrawBits);
    *cell++ = draw.offset;
    *cell++ = draw.count;
    *cell++ = static_cast<int64_t>(draw.state);
  }
  return out;
}

at::Tensor DrawLog::tensor(std::string_view place, Phase phase) const {
  std::vector<RandomDraw> found;
  for (const RandomDraw& draw : draws_) {
    if (draw.place == place && draw.phase == phase) found.push_back(draw);
  }
  return draw_tensor(found);
}

Observation draw_observation(const DrawLog& log, const std::string& place, const Layout& layout,
                             int64_t step) {
  return {.kind = ObservationKind::kDraw,
          .name = observed_name(ObservationKind::kDraw, place),
          .step = step,
          .tensor = log.tensor(place),
          .layout = layout};
}

}  // namespace shardproof
