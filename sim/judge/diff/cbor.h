// The part of CBOR (RFC 8949) that rank reports use: integers, float64, bool, text, bytes, arrays.
// It is written by hand because every case makes a report of thousands of small values.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::sim {

class CborWriter {
 public:
  void integer(int64_t value) {
    value < 0 ? head(1, static_cast<uint64_t>(-(value + 1)))
              : head(0, static_cast<uint64_t>(value));
  }
  void natural(uint64_t value) { head(0, value); }
  void boolean(bool value) { bytes_.push_back(static_cast<char>(value ? 0xf5 : 0xf4)); }
  void number(double value);  // float64, including NaN and infinities
  void text(std::string_view value) { head(3, value.size()), bytes_.append(value); }
  void bytes(std::string_view value) { head(2, value.size()), bytes_.append(value); }
  void array(size_t count) { head(4, count); }
  void integers(const std::vector<int64_t>& values);
  void texts(const std::vector<std::string>& values);
  void numbers(const std::vector<double>& values);  // one byte string, little-endian float64
  std::string take() { return std::move(bytes_); }

 private:
  void head(unsigned major, uint64_t value);
  std::string bytes_;
};

// Reads the values of a CborWriter in the same order. Throws InternalError on anything else.
class CborReader {
 public:
  explicit CborReader(std::string_view bytes) : rest_(bytes) {}
  int64_t integer();
  uint64_t natural() { return head(0); }
  bool boolean();
  double number();
  std::string text() { return std::string(take(head(3))); }
  std::string_view bytes() { return take(head(2)); }
  size_t array();  // throws when it exceeds the bytes left
  void array(size_t expected);
  std::vector<int64_t> integers();
  std::vector<std::string> texts();
  std::vector<double> numbers();
  bool empty() const { return rest_.empty(); }
  bool integer_is_next() const {
    return !rest_.empty() && static_cast<unsigned char>(rest_[0]) >> 5 < 2;
  }

 private:
  uint64_t head(unsigned major);
  uint64_t argument(unsigned char first);
  std::string_view take(uint64_t count);
  std::string_view rest_;
};

}  // namespace shardproof::sim
