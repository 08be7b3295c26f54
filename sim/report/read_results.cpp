// Reads the results of an earlier run for --rerun-failed.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"

namespace shardproof::sim {

std::vector<std::string> unexpected_cases(const std::string& folder) {
  const std::string path = folder + "/results.json";
  const auto refuse = [&](const std::string& what) -> Error {
    return Error({.kind = ErrorKind::kBadInput,
                  .what = fmt::format("{}: {}", path, what),
                  .fix = "name the folder of an earlier run, for example runs/latest"});
  };
  std::ifstream stream(path);
  if (!stream) throw refuse("cannot be read");
  const auto results = nlohmann::json::parse(stream, nullptr, false);
  if (!results.is_object()) throw refuse("is not JSON of a run");
  if (results.value("format", nlohmann::json()) != kResultsFormat) {
    throw refuse(fmt::format("is not of the format {}", kResultsFormat));
  }
  std::vector<std::string> names;
  try {
    for (const auto& entry : results.at("cases")) {
      if (!entry.at("as_expected").get<bool>()) names.push_back(entry.at("name"));
    }
  } catch (const nlohmann::json::exception& error) {
    throw refuse(fmt::format("a case in it is not whole ({})", error.what()));
  }
  return names;
}

}  // namespace shardproof::sim
