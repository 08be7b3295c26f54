// Frames that nobody between two processes can read, make, change, repeat, reorder or leave out:
// one direction of a connection, encrypted and authenticated (XChaCha20-Poly1305) under a key of
// its own. The nonce is the number of the frame.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

namespace shardproof::sim::world {

class FrameSeal {
 public:
  using Key = std::array<unsigned char, 32>;
  explicit FrameSeal(const Key& key) : key_(key) {}

  std::string close(uint16_t type, const std::string& payload);
  // Nothing when this is not the other side's next frame, of this type.
  std::optional<std::string> open(uint16_t type, const std::string& sealed);

 private:
  Key key_;
  std::array<unsigned char, 24> number_{};
};

// Both directions, as one side sees them.
struct Seals {
  FrameSeal out;
  FrameSeal in;
};

}  // namespace shardproof::sim::world
