// Parses event by event, so that it finds duplicate keys, keeps only the entries that it needs, and
// refuses deep nesting at its second level.
#include "tensor/safetensors_header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/checked.h"
#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "base/utf8.h"
#include "tensor/safetensors_dtype.h"

namespace shardproof {
namespace {

using Json = nlohmann::json;

// Makes text of a hostile file fit for a message.
std::string name_text(std::string_view text) { return "'" + printable(text, 120) + "'"; }

constexpr const char* kRewrite = "write the file again with a safetensors library";

class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const std::string& file_name) : file_name_(file_name) {}

  SafetensorsHeader take() {
    if (!closed_) fail("the header is not a JSON object");
    return std::move(header_);
  }

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(double, const std::string& text) override {
    return unexpected("the number " + name_text(text));
  }
  bool binary(Json::binary_t&) override { return unexpected("binary data"); }

  bool number_integer(int64_t value) override {  // nlohmann passes only negative integers here
    return number(value, std::to_string(value));
  }

  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      fail(fmt::format("{}: the number {} in {} is larger than any file", where(), value,
                       name_text(key_)));
    }
    return number(static_cast<int64_t>(value), std::to_string(value));
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[key_] = value;
    } else if (place_ == Place::kEntry && key_ == "dtype") {
      entry_.dtype = value;
    } else {
      return unexpected("the string " + name_text(value));
    }
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kOutside) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = key_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
      entry_ = {.name = key_, .dtype = {}, .shape = {}};
      seen_here_.clear();
      offset_count_ = 0;
    } else {
      return unexpected("an object");
    }
    return true;
  }

  bool key(std::string& name) override {
    auto& seen = place_ == Place::kTop ? seen_names_ : seen_here_;
    if (!seen.insert(name).second)
      fail(fmt::format("the key {} stands twice in {}", name_text(name), where()));
    if (place_ == Place::kEntry && name != "dtype" && name != "shape" && name != "data_offsets") {
      fail(fmt::format("{}: unknown key {}", where(), name_text(name)));
    }
    key_ = name;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) finish_entry();
    if (place_ == Place::kTop) {
      closed_ = true;
      place_ = Place::kOutside;
    } else {
      place_ = Place::kTop;
    }
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kEntry || (key_ != "shape" && key_ != "data_offsets")) {
      return unexpected("a list");
    }
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offset_count_ != 2) {
      fail(fmt::format("{}: data_offsets has {}, not 2", where(),
                       count_of(static_cast<int64_t>(offset_count_), "number")));
    }
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const Json::exception& error) override {
    fail(fmt::format("the header is not JSON at its byte {}: {}", position,
                     name_text(json_problem(error))));
  }

  [[noreturn]] void fail(const std::string& what, const std::string& fix = kRewrite) const {
    throw_bad_input(fmt::format("{}: {}", file_name_, what), fix);
  }

 private:
  enum class Place { kOutside, kTop, kMetadata, kEntry, kShape, kOffsets };

  std::string where() const {
    switch (place_) {
      case Place::kOutside:
      case Place::kTop:
        return "the header";
      case Place::kMetadata:
        return "__metadata__";
      default:
        return "tensor " + name_text(entry_.name);
    }
  }

  bool unexpected(const std::string& what) const {
    if (place_ == Place::kOutside)
      fail(fmt::format("the header is {}, not an object of tensors", what));
    fail(fmt::format("{}: {} where {} belongs", where(), what, wanted()));
  }

  std::string wanted() const {
    switch (place_) {
      case Place::kTop:
        return fmt::format("the object of {}", name_text(key_));
      case Place::kMetadata:
        return fmt::format("the text of {}", name_text(key_));
      case Place::kShape:
        return "a size";
      case Place::kOffsets:
        return "a byte offset";
      default:
        return key_ == "dtype" ? "a dtype's name" : fmt::format("the list {}", key_);
    }
  }

  bool number(int64_t value, const std::string& text) {
    if (place_ != Place::kShape && place_ != Place::kOffsets)
      return unexpected("the number " + text);
    if (value < 0) fail(fmt::format("{}: {} in {} is negative", where(), value, key_));
    if (place_ == Place::kOffsets) {
      if (offset_count_ == 0) entry_.begin = value;
      if (offset_count_ == 1) entry_.end = value;
      ++offset_count_;
      return true;
    }
    entry_.shape.push_back(value);
    if (static_cast<int64_t>(entry_.shape.size()) > kMaxSafetensorsDims) {
      fail(fmt::format("{} has more than {} dims", where(), kMaxSafetensorsDims));
    }
    return true;
  }

  void finish_entry() {
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (seen_here_.count(needed) == 0) fail(fmt::format("{} has no {}", where(), needed));
    }
    header_.entries.push_back(std::move(entry_));
    entry_ = {};
  }

  const std::string& file_name_;
  SafetensorsHeader header_;
  SafetensorsEntry entry_;
  Place place_ = Place::kOutside;
  bool closed_ = false;
  std::string key_;
  std::set<std::string> seen_names_, seen_here_;
  int64_t offset_count_ = 0;
};

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

// Counts sizes of 0 as 1, so that strides cannot overflow either.
std::optional<int64_t> byte_count(const SafetensorsEntry& entry, int64_t element_bytes) {
  int64_t bytes = element_bytes;
  bool empty = false;
  for (const int64_t size : entry.shape) {
    empty = empty || size == 0;
    const auto product = checked_multiply(bytes, std::max<int64_t>(size, 1));
    if (!product) return std::nullopt;
    bytes = *product;
  }
  return empty ? 0 : bytes;
}

void check_entry(const SafetensorsEntry& entry, int64_t data_bytes, const HeaderReader& reader) {
  const std::string name = name_text(entry.name);
  const int64_t element_bytes = safetensors_dtype_bytes(entry.dtype);
  if (element_bytes == 0 && entry.dtype.starts_with("F8")) {
    reader.fail(
        fmt::format("tensor {} is {}, and float8 is not supported", name, name_text(entry.dtype)),
        "convert it to bfloat16 or a wider type");
  }
  if (element_bytes == 0) {
    reader.fail(fmt::format("tensor {} has the unknown dtype {}", name, name_text(entry.dtype)));
  }
  if (entry.begin > entry.end || entry.end > data_bytes) {
    reader.fail(fmt::format("tensor {} lies at bytes {} to {} of {} bytes of data", name,
                            entry.begin, entry.end, data_bytes));
  }
  const auto bytes = byte_count(entry, element_bytes);
  if (!bytes) {
    reader.fail(fmt::format("tensor {} of shape {} has more bytes than can be counted", name,
                            shape_text(entry.shape)));
  }
  if (*bytes != entry.end - entry.begin) {
    reader.fail(
        fmt::format("tensor {} of shape {} and dtype {} takes {} bytes, its data_offsets say {}",
                    name, shape_text(entry.shape), entry.dtype, *bytes, entry.end - entry.begin));
  }
}

// Checks that the entries cover the data once, without holes.
void check_cover(const std::vector<SafetensorsEntry>& entries, int64_t data_bytes,
                 const HeaderReader& reader) {
  int64_t covered = 0;
  for (const auto& entry : entries) {
    if (entry.begin < covered) {
      reader.fail(fmt::format("tensor {} starts at byte {} inside another that ends at {}",
                              name_text(entry.name), entry.begin, covered));
    }
    if (entry.begin > covered) {
      reader.fail(
          fmt::format("bytes {} to {} of the data belong to no tensor", covered, entry.begin));
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    reader.fail(fmt::format("the tensors end at byte {} of {} bytes of data", covered, data_bytes));
  }
}

}  // namespace

int64_t safetensors_dtype_bytes(std::string_view dtype) {
  const std::optional<Dtype> known = dtype_of_safetensors(dtype);
  return known ? element_bytes(*known) : 0;
}

SafetensorsHeader parse_safetensors_header(std::string_view text, int64_t data_bytes,
                                           const std::string& file_name) {
  HeaderReader reader(file_name);
  Json::sax_parse(text.begin(), text.end(), &reader);
  SafetensorsHeader header = reader.take();
  for (const auto& entry : header.entries) check_entry(entry, data_bytes, reader);
  std::stable_sort(header.entries.begin(), header.entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_cover(header.entries, data_bytes, reader);
  return header;
}

std::string safetensors_header_bytes(const std::vector<SafetensorsEntry>& entries,
                                     const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  for (const auto& entry : entries) {
    header[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}};
  }
  std::string text = header.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  return length + text;
}

}  // namespace shardproof
