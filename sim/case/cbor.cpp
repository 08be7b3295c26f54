#include "sim/case/cbor.h"

#include <cstring>

#include "base/error.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void damaged(const std::string& why) {
  throw InternalError("a rank's report is damaged: " + why);
}

}  // namespace

void CborWriter::head(unsigned major, uint64_t value) {
  int width = 0;  // number of bytes that follow: 0, 1, 2, 4 or 8
  unsigned short_form = 0;
  if (value < 24) {
    short_form = static_cast<unsigned>(value);
  } else if (value <= 0xff) {
    width = 1, short_form = 24;
  } else if (value <= 0xffff) {
    width = 2, short_form = 25;
  } else if (value <= 0xffffffff) {
    width = 4, short_form = 26;
  } else {
    width = 8, short_form = 27;
  }
  bytes_.push_back(static_cast<char>(major << 5 | short_form));
  for (int shift = 8 * (width - 1); shift >= 0; shift -= 8) {
    bytes_.push_back(static_cast<char>(value >> shift & 0xff));
  }
}

void CborWriter::put(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bytes_.push_back(static_cast<char>(0xfb));
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes_.push_back(static_cast<char>(bits >> shift & 0xff));
}

void CborWriter::put(const std::vector<double>& values) {
  head(2, values.size() * sizeof(double));
  bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
}

void CborWriter::json(const nlohmann::json& value) {
  const std::vector<uint8_t> encoded = nlohmann::json::to_cbor(value);
  head(2, encoded.size());
  bytes_.append(encoded.begin(), encoded.end());
}

std::string_view CborReader::bytes(uint64_t count) {
  if (count > rest_.size()) damaged("it ends early");
  const std::string_view part = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return part;
}

uint64_t CborReader::argument(unsigned char first) {
  const unsigned short_form = first & 0x1f;
  if (short_form < 24) return short_form;
  if (short_form > 27) damaged("an unknown length");
  uint64_t value = 0;
  for (const char byte : bytes(1ULL << (short_form - 24))) {
    value = value << 8 | static_cast<unsigned char>(byte);
  }
  return value;
}

uint64_t CborReader::head(unsigned major) {
  const auto first = static_cast<unsigned char>(bytes(1)[0]);
  if (first >> 5 != major) damaged("a value of another kind");
  return argument(first);
}

void CborReader::take(int64_t& value) {
  const auto first = static_cast<unsigned char>(bytes(1)[0]);
  if (first >> 5 > 1) damaged("no integer where one belongs");
  const auto number = static_cast<int64_t>(argument(first));
  value = first >> 5 == 0 ? number : -1 - number;
}

void CborReader::take(bool& value) {
  const auto byte = static_cast<unsigned char>(bytes(1)[0]);
  if (byte != 0xf4 && byte != 0xf5) damaged("no bool where one belongs");
  value = byte == 0xf5;
}

void CborReader::take(double& value) {
  if (static_cast<unsigned char>(bytes(1)[0]) != 0xfb) damaged("no number where one belongs");
  uint64_t bits = 0;
  for (const char byte : bytes(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
  std::memcpy(&value, &bits, sizeof(value));
}

void CborReader::take(std::vector<double>& values) {
  const std::string_view raw = bytes(head(2));
  if (raw.size() % sizeof(double) != 0) damaged("a broken row of numbers");
  values.resize(raw.size() / sizeof(double));
  if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
}

size_t CborReader::array(size_t) {
  const uint64_t count = head(4);
  if (count > rest_.size()) damaged("an array longer than the report");
  return count;
}

void CborReader::fixed_array(size_t count) {
  if (array() != count) damaged("an array of another length");
}

int64_t CborReader::number_within(int64_t first, int64_t last, const char* what) {
  int64_t number = 0;
  take(number);
  if (number < first || number > last) damaged("an unknown " + std::string(what));
  return number;
}

nlohmann::json CborReader::parsed_json() {
  try {
    return nlohmann::json::from_cbor(bytes(head(2)));
  } catch (const nlohmann::json::exception&) {
    damaged("its timeline or metrics");
  }
}

}  // namespace shardproof::sim
