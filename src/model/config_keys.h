// Which keys of a Hugging Face config.json are read, refused, or left alone. No LibTorch here.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace shardproof {

// Throws Error(kBadInput) for keys that are nearly one that is read, and Error(kRefused) for a key
// that changes what a decoder computes in a way that no family here has. `where` names the object
// in messages.
void check_config_keys(const nlohmann::json& decoder, const std::string& where);
// As above for an object of rotary settings, of which `known` are read; every other key is refused.
void check_rope_keys(const nlohmann::json& rope, const std::string& where,
                     const std::vector<std::string>& known);

// The keys of a config that nothing reads, such as "torch_dtype", in the order of their names.
std::vector<std::string> unread_config_keys(const nlohmann::json& config);

}  // namespace shardproof
