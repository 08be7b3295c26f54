// The secret that the ranks of another launcher share. Whoever knows it may be a rank, or control.
#pragma once

#include <string>

#include "sim/world/external/external_place.h"

namespace shardproof::sim::world {

// From SHARDPROOF_SECRET, else from the file that SHARDPROOF_SECRET_FILE names and that only its
// owner may read. Else, where all ranks are on one host, from a file of this user that the first
// rank makes: $XDG_RUNTIME_DIR/shardproof/secret, or /tmp/shardproof-UID/secret.
// Throws Error(kBadInput): there is none, it is short, or others may read its file.
std::string shared_secret(const ExternalPlace& place, const GetVariable& variable);

}  // namespace shardproof::sim::world
