// UTF-8 is decoded here so that no byte of a rank's message can make a file unreadable.
#include "sim/report/escape.h"

#include <fmt/format.h>

#include <cmath>

namespace shardproof::sim {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

struct Decoded {
  char32_t code = 0;
  size_t bytes = 0;  // 0: invalid
};

Decoded decode(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return {lead, 1};
  const size_t bytes = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < bytes) return {};
  char32_t code = lead & (0x7F >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xC0) != 0x80) return {};
    code = code << 6 | (next & 0x3F);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < kSmallest[bytes] || code > 0x10FFFF || surrogate) return {};
  return {code, bytes};
}

// Calls `each(code, bytes)` for every character; each invalid byte is one U+FFFD.
template <class Each>
void for_each_character(std::string_view text, Each each) {
  while (!text.empty()) {
    const Decoded decoded = decode(text);
    if (decoded.bytes == 0) {
      each(char32_t{0xFFFD}, kReplacement);
      text.remove_prefix(1);
    } else {
      each(decoded.code, text.substr(0, decoded.bytes));
      text.remove_prefix(decoded.bytes);
    }
  }
}

bool allowed_in_xml(char32_t code) {
  if (code < 0x20) return code == '\t' || code == '\n' || code == '\r';
  return code != 0x7F && code != 0xFFFE && code != 0xFFFF;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t, std::string_view bytes) { out += bytes; });
  return out;
}

std::string xml_text(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for_each_character(text, [&](char32_t code, std::string_view bytes) {
    switch (code) {
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
        if (allowed_in_xml(code)) out += bytes;
    }
  });
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

}  // namespace shardproof::sim
