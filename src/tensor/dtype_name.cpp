#include "tensor/dtype_name.h"

#include "tensor/aten_view.h"

namespace shardproof {

std::string dtype_name(at::ScalarType type) {
  const std::optional<Dtype> dtype = dtype_of(type);
  return dtype ? dtype_name(*dtype) : c10::toString(type);
}

}  // namespace shardproof
