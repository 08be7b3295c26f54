#include "base/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/read_text.h"

namespace shardproof {

namespace fs = std::filesystem;

std::set<std::string> weight_files(const std::string& folder) {
  const fs::path single = fs::path(folder) / "model.safetensors";
  const fs::path index_path = fs::path(folder) / "model.safetensors.index.json";
  if (fs::exists(single)) return {single.string()};
  if (!fs::exists(index_path)) {
    throw_bad_input(
        fmt::format("'{}' holds neither model.safetensors nor model.safetensors.index.json",
                    folder),
        "save the model there with save_pretrained");
  }
  const nlohmann::json index = read_json_object(index_path.string());
  const auto map = index.find("weight_map");
  if (map == index.end() || !map->is_object()) {
    throw_bad_input(fmt::format("'{}' is not an index with a weight_map", index_path.string()),
                    "save the model again");
  }
  std::set<std::string> files;
  for (const auto& [name, file] : map->items()) {
    const bool plain = file.is_string() && fs::path(file.get<std::string>()).filename() ==
                                               fs::path(file.get<std::string>());
    if (!plain) {
      throw_bad_input(
          fmt::format("'{}': '{}' names no file of the folder", index_path.string(), name),
          "save the model again");
    }
    files.insert((fs::path(folder) / file.get<std::string>()).string());
  }
  return files;
}

}  // namespace shardproof
