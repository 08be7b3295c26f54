#include "sim/world/process/seal.h"

#include <sodium.h>

namespace shardproof::sim::world {
namespace {

constexpr size_t kTagBytes = crypto_aead_xchacha20poly1305_ietf_ABYTES;

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* bytes_of(const std::string& text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

static_assert(sizeof(FrameSeal::Key) == crypto_aead_xchacha20poly1305_ietf_KEYBYTES);

std::string FrameSeal::close(uint16_t type, const std::string& payload) {
  static_assert(sizeof(number_) == crypto_aead_xchacha20poly1305_ietf_NPUBBYTES);
  std::string sealed(payload.size() + kTagBytes, '\0');
  crypto_aead_xchacha20poly1305_ietf_encrypt(bytes_of(sealed), nullptr, bytes_of(payload),
                                             payload.size(),
                                             reinterpret_cast<const unsigned char*>(&type),
                                             sizeof(type), nullptr, number_.data(), key_.data());
  sodium_increment(number_.data(), number_.size());
  return sealed;
}

std::optional<std::string> FrameSeal::open(uint16_t type, const std::string& sealed) {
  if (sealed.size() < kTagBytes) return std::nullopt;
  std::string payload(sealed.size() - kTagBytes, '\0');
  if (crypto_aead_xchacha20poly1305_ietf_decrypt(bytes_of(payload), nullptr, nullptr,
                                                 bytes_of(sealed), sealed.size(),
                                                 reinterpret_cast<const unsigned char*>(&type),
                                                 sizeof(type), number_.data(), key_.data()) != 0) {
    return std::nullopt;
  }
  sodium_increment(number_.data(), number_.size());
  return payload;
}

}  // namespace shardproof::sim::world
