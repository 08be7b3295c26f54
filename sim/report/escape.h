// Converts any text and number to valid JSON, XML and file names.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace shardproof::sim::report {

// `text` with every invalid byte sequence replaced by U+FFFD.
std::string valid_utf8(std::string_view text);

// Text and attribute values of XML 1.0: escapes markup and drops characters that XML forbids.
std::string xml_text(std::string_view text);

// A file name for any system, at most 100 characters: letters, digits and .=,+-_[] stay, '/'
// becomes '.', everything else '_'.
std::string file_slug(std::string_view text);

// A number, or the text "nan", "inf" or "-inf", which JSON numbers cannot represent.
nlohmann::ordered_json json_number(double value);

// Applies json_number to every number in `value`.
nlohmann::ordered_json json_finite(const nlohmann::json& value);

}  // namespace shardproof::sim::report
