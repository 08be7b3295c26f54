// The dtype names of safetensors files and their LibTorch types. For the .cpp files of this folder.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <utility>

namespace shardproof {

constexpr std::pair<const char*, c10::ScalarType> kSafetensorsTypes[] = {
    {"F64", c10::ScalarType::Double}, {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},   {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},   {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},  {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},    {"BOOL", c10::ScalarType::Bool}};

inline std::optional<c10::ScalarType> scalar_type_of(const std::string& name) {
  for (const auto& [known, type] : kSafetensorsTypes) {
    if (name == known) return type;
  }
  return std::nullopt;
}

inline std::optional<std::string> safetensors_name_of(c10::ScalarType type) {
  for (const auto& [name, known] : kSafetensorsTypes) {
    if (type == known) return name;
  }
  return std::nullopt;
}

}  // namespace shardproof
