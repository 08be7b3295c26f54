// The experts that the float64 run of a case in a lower precision chose. The other runs of its
// golden choose them too, as ranks do: roundings decide between scores that are near each other,
// and one token at another expert differs by more than any rounding.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "model/decoder.h"

namespace shardproof::golden {

class RouteChoices {
 public:
  // Wraps the selections of `model`: the first run keeps what they choose, and runs after fix()
  // choose that. This object outlives the model.
  void wrap(Decoder& model);
  void fix() { fixed_ = true; }

 private:
  bool fixed_ = false;
  std::map<std::pair<std::string, int64_t>, at::Tensor> ids_;  // [B, S, K] by selection and step
};

}  // namespace shardproof::golden
