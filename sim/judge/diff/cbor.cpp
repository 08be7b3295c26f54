#include "sim/judge/diff/cbor.h"

#include "base/error.h"

namespace shardproof::sim {
namespace {

[[noreturn]] void damaged(const char* why) {
  throw InternalError(std::string("a rank's report is damaged: ") + why);
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

void CborWriter::number(double value) {
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bytes_.push_back(static_cast<char>(0xfb));
  for (int shift = 56; shift >= 0; shift -= 8)
    bytes_.push_back(static_cast<char>(bits >> shift & 0xff));
}

void CborWriter::integers(const std::vector<int64_t>& values) {
  array(values.size());
  for (const int64_t value : values) integer(value);
}

void CborWriter::texts(const std::vector<std::string>& values) {
  array(values.size());
  for (const std::string& value : values) text(value);
}

void CborWriter::numbers(const std::vector<double>& values) {
  bytes({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)});
}

std::string_view CborReader::take(uint64_t count) {
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
  for (const char byte : take(1ULL << (short_form - 24))) {
    value = value << 8 | static_cast<unsigned char>(byte);
  }
  return value;
}

uint64_t CborReader::head(unsigned major) {
  const auto first = static_cast<unsigned char>(take(1)[0]);
  if (first >> 5 != major) damaged("a value of another kind");
  return argument(first);
}

int64_t CborReader::integer() {
  const auto first = static_cast<unsigned char>(take(1)[0]);
  if (first >> 5 > 1) damaged("no integer where one belongs");
  const auto value = static_cast<int64_t>(argument(first));
  return first >> 5 == 0 ? value : -1 - value;
}

bool CborReader::boolean() {
  const auto byte = static_cast<unsigned char>(take(1)[0]);
  if (byte != 0xf4 && byte != 0xf5) damaged("no bool where one belongs");
  return byte == 0xf5;
}

double CborReader::number() {
  if (static_cast<unsigned char>(take(1)[0]) != 0xfb) damaged("no number where one belongs");
  uint64_t bits = 0;
  for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

size_t CborReader::array() {
  const uint64_t count = head(4);
  if (count > rest_.size()) damaged("an array longer than the report");
  return count;
}

void CborReader::array(size_t expected) {
  if (array() != expected) damaged("an array of another length");
}

std::vector<int64_t> CborReader::integers() {
  std::vector<int64_t> values(array());
  for (int64_t& value : values) value = integer();
  return values;
}

std::vector<std::string> CborReader::texts() {
  std::vector<std::string> values(array());
  for (std::string& value : values) value = text();
  return values;
}

std::vector<double> CborReader::numbers() {
  const std::string_view raw = bytes();
  if (raw.size() % sizeof(double) != 0) damaged("a broken row of numbers");
  std::vector<double> values(raw.size() / sizeof(double));
  if (!raw.empty()) std::memcpy(values.data(), raw.data(), raw.size());
  return values;
}

}  // namespace shardproof::sim
