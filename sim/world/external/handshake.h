// How control and a rank prove to each other that they know the run's secret, before either sends
// or reads anything else:
//
//   control -> rank   magic, nonce of control                                      40 bytes
//   rank -> control   nonce of the rank, its number, the world size, a MAC         72 bytes
//   control -> rank   a MAC                                                        32 bytes
//
// A MAC is HMAC-SHA256 under the secret of: who proves, both nonces, the rank, the world size. So
// it is good on this connection and in this direction alone. The keys of the frames that follow are
// MACs of the same facts under other names.
#pragma once

#include <optional>
#include <string>

#include "sim/world/process/seal.h"

namespace shardproof::sim::world {

inline constexpr size_t kGreetingBytes = 40;
inline constexpr size_t kAnswerBytes = 72;
inline constexpr size_t kReplyBytes = 32;

using Nonce = std::array<unsigned char, 32>;

// Both sides know these when both nonces have been sent.
struct HandshakeFacts {
  Nonce control_nonce{};
  Nonce rank_nonce{};
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

// What control knows of a rank that has proved itself.
struct ProvedRank {
  int64_t rank = -1, world_size = 0;
  std::string reply;  // "": it belongs to another world
  Seals seals;
};

class ControlHandshake {
 public:
  ControlHandshake(std::string secret, int64_t world_size);
  std::string greeting() const;
  // Nothing unless a rank, perhaps of another world, made the answer to this greeting with the
  // secret.
  std::optional<ProvedRank> check(const std::string& answer) const;

 private:
  std::string secret_;
  HandshakeFacts facts_;
};

class RankHandshake {
 public:
  RankHandshake(std::string secret, int64_t rank, int64_t world_size);
  // "": this is not a greeting of control.
  std::string answer(const std::string& greeting);
  // Nothing unless control made the reply to this answer with the secret.
  std::optional<Seals> check(const std::string& reply) const;

 private:
  std::string secret_;
  HandshakeFacts facts_;
};

}  // namespace shardproof::sim::world
