// The part of CBOR (RFC 8949) that rank reports and endings use: integers, float64, bool, text (any
// bytes), bytes, arrays. It is written by hand because every case makes a report of thousands of
// small values.
//
// CborWriter and CborReader have the same functions, so that one template lists the fields of a
// record for both directions: `codec(record.name, record.step)`.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::sim {

class CborWriter {
 public:
  static constexpr bool kReads = false;

  // Signed and natural numbers, float64 (NaN and infinities too), bool, text, and lists of them.
  template <class... Values>
  void operator()(const Values&... values) {
    (put(values), ...);
  }
  // The head of an array; returns its size.
  size_t array(size_t count) {
    head(4, count);
    return count;
  }
  void fixed_array(size_t count) { head(4, count); }
  // An array whose items `fields` writes.
  template <class Item, class Fields>
  void each(const std::vector<Item>& items, const Fields& fields, const Item& = {}) {
    array(items.size());
    for (const Item& item : items) fields(item);
  }
  // One number whose bits they are.
  template <class... Flags>
  void flags(const Flags&... flags) {
    uint64_t bits = 0, bit = 1;
    ((bits |= flags ? bit : 0, bit <<= 1), ...);
    put(bits);
  }
  // The number of an enum's value; of none, -1. The reader knows the last value and the word for
  // it.
  template <class Enum>
  void one_of(Enum value, Enum, const char*) {
    put(static_cast<int64_t>(value));
  }
  template <class Enum>
  void one_of(const std::optional<Enum>& value, Enum, const char*) {
    put(value ? static_cast<int64_t>(*value) : int64_t{-1});
  }
  // CBOR within a byte string.
  void json(const nlohmann::json& value);

  std::string take() { return std::move(bytes_); }

 private:
  void put(int64_t value) {
    value < 0 ? head(1, static_cast<uint64_t>(-(value + 1)))
              : head(0, static_cast<uint64_t>(value));
  }
  void put(uint64_t value) { head(0, value); }
  void put(bool value) { bytes_.push_back(static_cast<char>(value ? 0xf5 : 0xf4)); }
  void put(double value);
  void put(const std::string& value) { head(3, value.size()), bytes_.append(value); }
  void put(const std::vector<double>& values);  // one byte string, little-endian float64
  template <class Value>
  void put(const std::vector<Value>& values) {
    each(values, [this](const Value& value) { put(value); });
  }

  void head(unsigned major, uint64_t value);
  std::string bytes_;
};

// Reads the values of a CborWriter in the same order. Throws InternalError on anything else.
class CborReader {
 public:
  static constexpr bool kReads = true;
  explicit CborReader(std::string_view bytes) : rest_(bytes) {}

  template <class... Values>
  void operator()(Values&... values) {
    (take(values), ...);
  }
  size_t array(
      size_t written = 0);  // the size that it has; throws when that exceeds the bytes left
  void fixed_array(size_t count);
  // The items begin as copies of `blank`.
  template <class Item, class Fields>
  void each(std::vector<Item>& items, const Fields& fields, const Item& blank = {}) {
    items.assign(array(), blank);
    for (Item& item : items) fields(item);
  }
  template <class... Flags>
  void flags(Flags&... flags) {
    uint64_t bits = 0;
    take(bits);
    ((flags = bits & 1, bits >>= 1), ...);
  }
  template <class Enum>
  void one_of(Enum& value, Enum last, const char* what) {
    value = static_cast<Enum>(number_within(0, static_cast<int64_t>(last), what));
  }
  template <class Enum>
  void one_of(std::optional<Enum>& value, Enum last, const char* what) {
    const int64_t number = number_within(-1, static_cast<int64_t>(last), what);
    value = number < 0 ? std::nullopt : std::optional(static_cast<Enum>(number));
  }
  template <class Value>
  void json(Value& value) {
    value = parsed_json().get<Value>();
  }

  bool empty() const { return rest_.empty(); }
  bool integer_is_next() const {
    return !rest_.empty() && static_cast<unsigned char>(rest_[0]) >> 5 < 2;
  }

 private:
  void take(int64_t& value);
  void take(uint64_t& value) { value = head(0); }
  void take(bool& value);
  void take(double& value);
  void take(std::string& value) { value = bytes(head(3)); }
  void take(std::vector<double>& values);
  template <class Value>
  void take(std::vector<Value>& values) {
    each(values, [this](Value& value) { take(value); });
  }

  uint64_t head(unsigned major);
  uint64_t argument(unsigned char first);
  std::string_view bytes(uint64_t count);
  int64_t number_within(int64_t first, int64_t last, const char* what);
  nlohmann::json parsed_json();
  std::string_view rest_;
};

}  // namespace shardproof::sim
