#include "sim/lint/scenario_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/utf8.h"
#include "sim/case/scenario/case_folder.h"

namespace shardproof::sim::lint {

namespace fs = std::filesystem;

namespace {

bool is_scenario_name(const fs::path& path) {
  return path.extension() == ".yaml" || path.extension() == ".yml";
}

void add_folder(const fs::path& folder, std::vector<std::string>& files) {
  std::vector<std::string> found;
  std::error_code error;
  fs::recursive_directory_iterator walk(folder, error);
  for (const auto end = fs::recursive_directory_iterator(); !error && walk != end;
       walk.increment(error)) {
    if (is_scenario_name(walk->path()) && walk->is_regular_file())
      found.push_back(walk->path().string());
  }
  if (error)
    throw_bad_input(fmt::format("{} cannot be read: {}", folder.string(), error.message()),
                    "check its permissions");
  if (found.empty())
    throw_bad_input(folder.string() + " holds no scenario (*.yaml)", "name another folder");
  std::sort(found.begin(), found.end());
  for (const std::string& file : found) {
    if (invalid_utf8(file) != std::string::npos) {
      throw_bad_input("a file name below " + folder.string() + " is not UTF-8", "rename it");
    }
  }
  files.insert(files.end(), found.begin(), found.end());
}

}  // namespace

std::string find_in_repository(const std::string& relative_path) {
  if (fs::exists(relative_path)) return relative_path;
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  while (!error && folder.has_relative_path()) {
    if (fs::exists(folder / relative_path)) return (folder / relative_path).string();
    folder = folder.parent_path();
  }
  return "";
}

std::string own_scenario(const std::string& path) {
  if (fs::exists(path) || !path.starts_with("scenarios/")) return path;
  const std::string own = find_in_repository(path);
  return own.empty() ? path : own;
}

std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& given : paths) {
    if (invalid_utf8(given) != std::string::npos)
      throw_bad_input("a path is not UTF-8", "rename it");
    const std::string path = own_scenario(given);
    if (!fs::exists(path))
      throw_bad_input(path + " does not exist", "name a scenario file or folder");
    if (!fs::is_directory(path)) {
      files.push_back(path);
    } else if (looks_like_case_folder(path)) {
      throw_bad_input(path + " is a case folder", "use: shardproof check " + path);
    } else {
      add_folder(path, files);
    }
  }
  if (!paths.empty()) return files;
  const std::string folder = find_in_repository("scenarios");
  if (folder.empty())
    throw_bad_input("there is no folder scenarios here", "name a scenario file or folder");
  add_folder(folder, files);
  return files;
}

}  // namespace shardproof::sim::lint
