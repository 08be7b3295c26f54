// Which files hold the weights of a folder of Hugging Face.
#pragma once

#include <set>
#include <string>

namespace shardproof {

// The files of a model's folder that hold its weights: model.safetensors, or those that
// model.safetensors.index.json names. Throws Error(kBadInput) where neither is there, and for an
// index that names no files of the folder.
std::set<std::string> weight_files(const std::string& folder);

}  // namespace shardproof
