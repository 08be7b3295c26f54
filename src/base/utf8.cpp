#include "base/utf8.h"

namespace shardproof {
namespace {

// Length of the UTF-8 sequence that starts with `lead`; 0 when no sequence does. C0, C1 and F5..
// are never valid.
size_t sequence_length(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

// The second byte excludes overlong forms, surrogates and code points over U+10FFFF.
bool second_byte_fits(unsigned char lead, unsigned char second) {
  if (lead == 0xE0) return second >= 0xA0;
  if (lead == 0xED) return second <= 0x9F;
  if (lead == 0xF0) return second >= 0x90;
  if (lead == 0xF4) return second <= 0x8F;
  return true;
}

// The number of bytes of the valid sequence at `at`, or 0.
size_t valid_length(std::string_view text, size_t at) {
  const auto lead = static_cast<unsigned char>(text[at]);
  const size_t length = sequence_length(lead);
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[at + i]) & 0xC0) != 0x80) return 0;
  }
  const bool fits = length == 1 || second_byte_fits(lead, static_cast<unsigned char>(text[at + 1]));
  return fits ? length : 0;
}

// C0 and DEL in one byte, C1 (U+0080 to U+009F) in two.
bool is_control(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return lead < 0x20 || lead == 0x7F;
  return lead == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0;
}

}  // namespace

size_t invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = valid_length(text, at);
    if (length == 0) return at;
    at += length;
  }
  return std::string_view::npos;
}

bool is_printable(std::string_view text) { return printable(text) == text; }

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const size_t valid = valid_length(text, at);
    const std::string_view character = text.substr(at, valid == 0 ? 1 : valid);
    if (out.size() + character.size() > max_bytes) return out + "...";
    if (valid == 0 || is_control(character))
      out += '?';
    else
      out += character;
    at += character.size();
  }
  return out;
}

}  // namespace shardproof
