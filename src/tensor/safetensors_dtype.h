// The dtype names of safetensors files. For the .cpp files of this folder.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "tensor/tensor_view.h"

namespace shardproof {

constexpr std::pair<const char*, Dtype> kSafetensorsDtypes[] = {
    {"F64", Dtype::kFloat64},   {"F32", Dtype::kFloat32}, {"F16", Dtype::kFloat16},
    {"BF16", Dtype::kBFloat16}, {"I64", Dtype::kInt64},   {"I32", Dtype::kInt32},
    {"I16", Dtype::kInt16},     {"I8", Dtype::kInt8},     {"U8", Dtype::kUint8},
    {"BOOL", Dtype::kBool}};

inline std::optional<Dtype> dtype_of_safetensors(std::string_view name) {
  for (const auto& [known, dtype] : kSafetensorsDtypes) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

inline std::optional<std::string> safetensors_name_of(std::optional<Dtype> dtype) {
  for (const auto& [name, known] : kSafetensorsDtypes) {
    if (dtype == known) return name;
  }
  return std::nullopt;
}

}  // namespace shardproof
