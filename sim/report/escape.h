// Text and numbers made fit for JSON, XML and file names, whatever they hold.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardproof::sim {

// `text` with every invalid byte sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// For XML 1.0 text and attribute values: markup escaped, characters that XML forbids left out.
std::string xml_text(std::string_view text);

// Fit for a file name on any system, at most 100 characters: letters, digits and .=,+-_[] stay,
// '/' becomes '.', everything else '_'.
std::string file_slug(std::string_view text);

// A number, or the text "nan", "inf" or "-inf", which JSON numbers cannot be.
nlohmann::ordered_json json_number(double value);

// The same for every number anywhere in `value`.
nlohmann::ordered_json json_finite(const nlohmann::json& value);

}  // namespace shardproof::sim
