// Messages to the kernel about the links of one network namespace (rtnetlink): those of `ip` and
// `tc` that nodes need, so that the program needs neither.
//
//   | nlmsghdr | a struct of the message's type | attribute | attribute | ..
//   attribute: | length: u16 | type: u16 | bytes, padded to 4 | or attributes inside
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/owned_fd.h"

namespace shardproof::sim::world {

class NetlinkMessage {
 public:
  template <class Struct>
  NetlinkMessage(uint16_t type, uint16_t flags, const Struct& body)
      : NetlinkMessage(type, flags, std::string_view(view_of(body), sizeof(body))) {}
  NetlinkMessage(uint16_t type, uint16_t flags, std::string_view body);

  void add(uint16_t type, std::string_view bytes);
  void add_text(uint16_t type, const std::string& text);
  template <class Number>
  void add_number(uint16_t type, const Number& number) {
    add(type, std::string_view(view_of(number), sizeof(number)));
  }
  size_t open(uint16_t type, std::string_view head = {});  // an attribute that holds others
  void close(size_t opened);
  std::string finished(uint32_t sequence) const;

 private:
  template <class Struct>
  static const char* view_of(const Struct& value) {
    return reinterpret_cast<const char*>(&value);
  }
  std::string bytes_;
};

// The attributes of an answer, by type; those of an unknown one are empty.
class NetlinkAttributes {
 public:
  explicit NetlinkAttributes(std::string_view bytes) : bytes_(bytes) {}
  std::string_view find(uint16_t type) const;

 private:
  std::string_view bytes_;
};

class Netlink {
 public:
  // A socket in the network namespace of the calling thread, where it stays.
  static OwnedFd open_socket();
  explicit Netlink(OwnedFd socket) : socket_(std::move(socket)) {}

  // Waits for the kernel's answer: 0, or the number of the error.
  int ask(const NetlinkMessage& message);
  // The answers, each without its header. Empty on an error.
  std::vector<std::string> dump(const NetlinkMessage& message);

 private:
  int exchange(const NetlinkMessage& message, std::vector<std::string>& answers);
  OwnedFd socket_;
  uint32_t sequence_ = 0;
};

}  // namespace shardproof::sim::world
