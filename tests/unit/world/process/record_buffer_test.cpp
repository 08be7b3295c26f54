// Records from bytes that arrive in any pieces are complete and in order, and are rarely moved.
#include <catch2/catch.hpp>
#include <string_view>

#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace {

struct ShortHeader {
  uint16_t bytes;
  uint8_t kind;
  uint8_t other;
};

std::string encoded(uint8_t kind, const std::string& payload) {
  const ShortHeader header{
      .bytes = static_cast<uint16_t>(payload.size()), .kind = kind, .other = 0};
  std::string record(sizeof(header), '\0');
  std::memcpy(record.data(), &header, sizeof(header));
  return record + payload;
}

void append(RecordBuffer& buffer, std::string_view bytes, size_t spare = 0) {
  std::memcpy(buffer.room(bytes.size() + spare), bytes.data(), bytes.size());
  buffer.arrived(bytes.size());
}

// Payloads differ; some are empty.
std::string payload_number(size_t number) {
  return std::string(number * 29 % 67, static_cast<char>('a' + number % 26));
}

TEST_CASE("records come out whole and in order, however their bytes are cut", "[launch]") {
  constexpr size_t kRecords = 40;
  std::string stream;
  for (size_t i = 0; i < kRecords; ++i) {
    stream += encoded(static_cast<uint8_t>(i), payload_number(i));
  }
  for (const size_t piece : {1, 2, 3, 5, 64, 1000, 100'000}) {
    INFO("pieces of " << piece);
    RecordBuffer buffer;
    size_t next = 0, wrong = 0;
    for (size_t at = 0; at < stream.size(); at += piece) {
      append(buffer, std::string_view(stream).substr(at, piece), at % 7);
      while (const auto record = buffer.take<ShortHeader>()) {
        if (record->header.kind != next || record->payload != payload_number(next)) ++wrong;
        ++next;
      }
    }
    CHECK(next == kRecords);
    CHECK(wrong == 0);
  }
}

TEST_CASE("clear() forgets half a record", "[launch]") {
  RecordBuffer buffer;
  append(buffer, encoded(1, "payload").substr(0, 8));
  CHECK_FALSE(buffer.take<ShortHeader>());
  buffer.clear();
  append(buffer, encoded(2, "another"));
  const auto taken = buffer.take<ShortHeader>();
  REQUIRE(taken);
  CHECK(taken->payload == "another");
  CHECK_FALSE(buffer.take<ShortHeader>());
}

TEST_CASE("taking records moves none of the others, and their memory is used again", "[launch]") {
  constexpr size_t kRecords = 100, kRoom = 1 << 16;
  const std::string record = encoded(0, "twenty bytes of text");
  RecordBuffer buffer;
  const void* const memory = buffer.room(kRoom);
  for (size_t i = 0; i < kRecords; ++i) append(buffer, record);
  const void* const behind_the_last = buffer.room(1);
  for (size_t i = 1; i < kRecords; ++i) {
    REQUIRE(buffer.take<ShortHeader>());
    CHECK(static_cast<const void*>(buffer.room(1)) == behind_the_last);
  }
  const size_t left = record.size();  // the last record moves to the front for more room
  CHECK(static_cast<const void*>(buffer.room(kRoom - left)) ==
        static_cast<const char*>(memory) + left);
  const auto last = buffer.take<ShortHeader>();
  REQUIRE(last);
  CHECK(last->payload == "twenty bytes of text");
  CHECK(static_cast<const void*>(buffer.room(kRoom)) == memory);
}

}  // namespace
}  // namespace shardproof::sim::world
