// A named enum (base/enum_names.h) is its name in JSON.
#pragma once

#include <nlohmann/json.hpp>

#include "base/enum_names.h"

template <shardproof::NamedEnum Enum>
struct nlohmann::adl_serializer<Enum> {
  template <class Json>
  static void to_json(Json& json, Enum value) {
    json = shardproof::name_of(value);
  }
  template <class Json>
  static void from_json(const Json& json, Enum& value) {
    value = shardproof::enum_of<Enum>(json.template get<std::string>());
  }
};
