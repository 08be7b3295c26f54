#include "sim/world/external/handshake.h"

#include <sodium.h>

#include <cstring>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

// Changes with the bytes of the handshake and of the frames behind it.
constexpr char kMagic[] = "shrdprf1";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;

constexpr char kRankProves[] = "a rank proves itself";
constexpr char kControlProves[] = "control proves itself";
constexpr char kFramesToControl[] = "frames to control";
constexpr char kFramesToRank[] = "frames to a rank";

using Mac = std::array<unsigned char, crypto_auth_hmacsha256_BYTES>;
constexpr size_t kFactsOfRank = sizeof(Nonce) + 2 * sizeof(uint32_t);

// The facts that the rank sends lie behind the nonce of control.
char* of_rank(HandshakeFacts& facts) { return reinterpret_cast<char*>(&facts) + sizeof(Nonce); }

static_assert(sizeof(HandshakeFacts) == 2 * sizeof(Nonce) + 2 * sizeof(uint32_t));
static_assert(kGreetingBytes == kMagicBytes + sizeof(Nonce));
static_assert(kAnswerBytes == kFactsOfRank + sizeof(Mac) && kReplyBytes == sizeof(Mac));

template <size_t kBytes>
Mac mac_of(const std::string& secret, const char (&name)[kBytes], const HandshakeFacts& facts) {
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(secret.data()),
                              secret.size());
  // With the zero at the end of the name: no name is the beginning of another.
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(name), kBytes);
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&facts),
                                sizeof(facts));
  Mac mac;
  crypto_auth_hmacsha256_final(&state, mac.data());
  return mac;
}

std::string text_of(const Mac& mac) { return {mac.begin(), mac.end()}; }

bool equal(const Mac& mac, const char* bytes) {
  return sodium_memcmp(mac.data(), bytes, mac.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce;
  randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace

ControlHandshake::ControlHandshake(std::string secret, int64_t world_size)
    : secret_(std::move(secret)) {
  facts_.control_nonce = random_nonce();
  facts_.world_size = static_cast<uint32_t>(world_size);
}

std::string ControlHandshake::greeting() const {
  return kMagic + std::string(facts_.control_nonce.begin(), facts_.control_nonce.end());
}

std::optional<ProvedRank> ControlHandshake::check(const std::string& answer) const {
  if (answer.size() != kAnswerBytes) return std::nullopt;
  HandshakeFacts facts = facts_;
  std::memcpy(of_rank(facts), answer.data(), kFactsOfRank);
  if (!equal(mac_of(secret_, kRankProves, facts), answer.data() + kFactsOfRank)) {
    return std::nullopt;
  }
  const bool is_of_world = facts.world_size == facts_.world_size && facts.rank < facts.world_size;
  return ProvedRank{facts.rank,
                    facts.world_size,
                    is_of_world ? text_of(mac_of(secret_, kControlProves, facts)) : "",
                    {.out = FrameSeal(mac_of(secret_, kFramesToRank, facts)),
                     .in = FrameSeal(mac_of(secret_, kFramesToControl, facts))}};
}

RankHandshake::RankHandshake(std::string secret, int64_t rank, int64_t world_size)
    : secret_(std::move(secret)) {
  facts_.rank_nonce = random_nonce();
  facts_.rank = static_cast<uint32_t>(rank);
  facts_.world_size = static_cast<uint32_t>(world_size);
}

std::string RankHandshake::answer(const std::string& greeting) {
  if (greeting.size() != kGreetingBytes || greeting.compare(0, kMagicBytes, kMagic) != 0) return "";
  std::memcpy(&facts_.control_nonce, greeting.data() + kMagicBytes, sizeof(Nonce));
  std::string answer(kFactsOfRank, '\0');
  std::memcpy(answer.data(), of_rank(facts_), kFactsOfRank);
  return answer + text_of(mac_of(secret_, kRankProves, facts_));
}

std::optional<Seals> RankHandshake::check(const std::string& reply) const {
  if (reply.size() != kReplyBytes) return std::nullopt;
  if (!equal(mac_of(secret_, kControlProves, facts_), reply.data())) return std::nullopt;
  return Seals{.out = FrameSeal(mac_of(secret_, kFramesToControl, facts_)),
               .in = FrameSeal(mac_of(secret_, kFramesToRank, facts_))};
}

}  // namespace shardproof::sim::world
