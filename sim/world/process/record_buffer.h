// Bytes that arrive in any pieces and are taken out as whole records.
//
//   | Header, whose `bytes` says how many follow | payload ... |      (host byte order)
//
// Taking a record moves no byte of the others: its bytes are reused when a writer needs room.
#pragma once

#include <cstring>
#include <optional>
#include <string>
#include <type_traits>

namespace shardproof::sim::world {

template <class Header>
struct Record {
  Header header;
  std::string payload;
};

class RecordBuffer {
 public:
  // Memory for `most` bytes behind those that have arrived; arrived() then says how many came. It
  // is good until the next call.
  char* room(size_t most);
  void arrived(size_t count);

  // The next record, once all of it has arrived.
  template <class Header>
  std::optional<Record<Header>> take() {
    static_assert(std::is_trivially_copyable_v<Header>);
    Record<Header> record;
    if (end_ - begin_ < sizeof(Header)) return std::nullopt;
    std::memcpy(&record.header, bytes_.data() + begin_, sizeof(Header));
    if (end_ - begin_ - sizeof(Header) < record.header.bytes) return std::nullopt;
    record.payload.assign(bytes_, begin_ + sizeof(Header), record.header.bytes);
    begin_ += sizeof(Header) + record.header.bytes;
    return record;
  }

  // All that has arrived is gone.
  void clear() { begin_ = end_ = 0; }

 private:
  std::string bytes_;  // from begin_ to end_: arrived and not taken; behind end_: room
  size_t begin_ = 0;
  size_t end_ = 0;
};

}  // namespace shardproof::sim::world
