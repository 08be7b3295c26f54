// No byte of a rank's message can make a file unreadable.
#include "sim/report/escape.h"

#include <cmath>

#include "base/utf8.h"

namespace shardproof::sim::report {
namespace {

// Characters that XML forbids although they are valid: U+FFFE and U+FFFF.
constexpr std::string_view kNoCharacters[] = {"\xEF\xBF\xBE", "\xEF\xBF\xBF"};

bool allowed_in_xml(char byte) {
  const auto code = static_cast<unsigned char>(byte);
  if (code < 0x20) return code == '\t' || code == '\n' || code == '\r';
  return code != 0x7F;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
  std::string out;
  out.reserve(text.size());
  for (size_t bad = 0; (bad = invalid_utf8(text)) != text.npos; text.remove_prefix(bad + 1)) {
    out += text.substr(0, bad);
    out += kReplacement;
  }
  return out += text;
}

std::string xml_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (const char byte : valid_utf8(text)) {
    switch (byte) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&apos;";
        break;
      case '\r':
        out += "&#13;";
        break;
      default:
        if (allowed_in_xml(byte)) out += byte;
    }
    for (const std::string_view character : kNoCharacters) {
      if (out.ends_with(character)) out.resize(out.size() - character.size());
    }
  }
  return out;
}

std::string file_slug(std::string_view text) {
  constexpr std::string_view kAllowed = ".=,+-_[]";
  std::string out;
  for (const char c : text.substr(0, 100)) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    out += is_plain || kAllowed.find(c) != std::string_view::npos ? c : c == '/' ? '.' : '_';
  }
  return out;
}

nlohmann::ordered_json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

nlohmann::ordered_json json_finite(const nlohmann::json& value) {
  if (value.is_number_float()) return json_number(value.get<double>());
  if (value.is_array()) {
    auto out = nlohmann::ordered_json::array();
    for (const auto& item : value) out.push_back(json_finite(item));
    return out;
  }
  if (value.is_object()) {
    auto out = nlohmann::ordered_json::object();
    for (const auto& [key, item] : value.items()) out[key] = json_finite(item);
    return out;
  }
  return value;
}

}  // namespace shardproof::sim::report
