// The names of an enum in files, flags and messages. Each enum has one list of them, in the order
// of its values:
//   enum class DeviceKind { kCpu, kCuda };
//   constexpr std::array<const char*, 2> names_of(DeviceKind) { return {"cpu", "cuda"}; }
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace shardproof {

template <class Enum>
concept NamedEnum = std::is_enum_v<Enum> && requires(Enum value) {
  names_of(value).size();
};

template <NamedEnum Enum>
std::string name_of(Enum value) {
  return names_of(value).at(static_cast<size_t>(value));
}

template <NamedEnum Enum>
std::vector<std::string> all_names() {
  const auto names = names_of(Enum{});
  return {names.begin(), names.end()};
}

template <NamedEnum Enum>
std::optional<Enum> find_enum(std::string_view name) {
  const auto names = names_of(Enum{});
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return static_cast<Enum>(found - names.begin());
}

// Throws Error(kBadInput) for an unknown name.
template <NamedEnum Enum>
Enum enum_of(const std::string& name) {
  if (const auto found = find_enum<Enum>(name)) return *found;
  const std::string nearest = nearest_name(name, names_of(Enum{}));
  throw_bad_input(fmt::format("'{}' is unknown", name),
                  fmt::format("known are {}{}", fmt::join(names_of(Enum{}), ", "),
                              nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

}  // namespace shardproof

template <shardproof::NamedEnum Enum>
struct fmt::formatter<Enum> : fmt::formatter<std::string> {
  template <class Context>
  auto format(Enum value, Context& context) const {
    return fmt::formatter<std::string>::format(shardproof::name_of(value), context);
  }
};
