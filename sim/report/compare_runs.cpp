#include "sim/report/compare_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "sim/report/results_json.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

[[noreturn]] void bad_run(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

// The cases of a run folder, or of a results.json.
json cases_of(const std::string& given) {
  const std::string path = std::filesystem::is_directory(given) ? given + "/results.json" : given;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) bad_run(path + " cannot be read", "name the folder of a finished run");
  json results = json::parse(stream, nullptr, /*allow_exceptions=*/false);
  if (!results.is_object() || results.value("format", json()) != kResultsFormat ||
      !results.value("cases", json()).is_array()) {
    bad_run(path + " is no results.json of this shardproof", "run it again");
  }
  return std::move(results["cases"]);
}

using ObservedName = std::tuple<std::string, int64_t, std::string>;  // phase, step, name

ObservedName key_of(const json& tensor) {
  return {tensor.at("phase").get<std::string>(), tensor.at("step").get<int64_t>(),
          tensor.at("name").get<std::string>()};
}

std::string title_of(const json& tensor) {
  const int64_t step = tensor.at("step");
  return fmt::format("{}, {}{}", tensor.at("name").get<std::string>(),
                     tensor.at("phase").get<std::string>(),
                     step > 0 ? fmt::format(" of step {}", step) : "");
}

// "" when the digests of all ranks are equal.
std::string digest_difference(const json& a, const json& b) {
  if (!a.is_array() || !b.is_array() || a.empty() || a.size() != b.size()) {
    bad_run("a results.json has a tensor without one digest for each rank", "run it again");
  }
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < a.size(); ++rank) {
    if (a[rank] != b[rank]) ranks.push_back(rank);
  }
  if (ranks.empty()) return "";
  const auto text = [](const json& digest) {
    return digest.is_string() ? digest.get<std::string>() : std::string("not observed");
  };
  return fmt::format("rank{} {}: {} in A, {} in B{}", ranks.size() > 1 ? "s" : "",
                     fmt::join(ranks, ", "), text(a[ranks[0]]), text(b[ranks[0]]),
                     ranks.size() > 1 ? fmt::format(" (rank {})", ranks[0]) : "");
}

void note_difference(CaseComparison& found, const json& tensor, const std::string& where) {
  if (where.empty()) return;
  if (found.differing++ > 0) return;
  found.first = title_of(tensor);
  found.where = where;
}

// Compares tensors in the order of execution; those that only B has come last.
void compare_tensors(const json& a, const json& b, CaseComparison& found) {
  std::map<ObservedName, const json*> of_b;
  for (const json& tensor : b.at("tensors")) of_b[key_of(tensor)] = &tensor;
  for (const json& tensor : a.at("tensors")) {
    ++found.tensors;
    const auto other = of_b.find(key_of(tensor));
    if (other == of_b.end()) {
      note_difference(found, tensor, "only A has it");
      continue;
    }
    note_difference(found, tensor,
                    digest_difference(tensor.at("digest"), other->second->at("digest")));
    of_b.erase(other);
  }
  for (const json& tensor : b.at("tensors")) {
    if (of_b.count(key_of(tensor)) == 0) continue;
    ++found.tensors;
    note_difference(found, tensor, "only B has it");
  }
}

CaseComparison compare_case(const json& a, const json& b) {
  CaseComparison found;
  found.name = a.at("name");
  found.backend = a.at("backend");
  if (a.at("backend") != b.at("backend")) {
    found.backend += " and " + b.at("backend").get<std::string>();
  }
  const auto text = [](const json& value, const char* key) {
    return value.at(key).is_string() ? value.at(key).get<std::string>() : value.at(key).dump();
  };
  for (const char* key : {"verdict", "world_size", "precision"}) {
    if (a.at(key) == b.at(key)) continue;
    found.other += fmt::format("{}{} {} in A, {} in B", found.other.empty() ? "" : "; ", key,
                               text(a, key), text(b, key));
  }
  if (a.at("world_size") == b.at("world_size")) compare_tensors(a, b, found);
  return found;
}

// The case of `others` that equals `one` of `cases`; null when there is none.
const json* same_case(const json& one, const json& cases, const json& others) {
  const json* found = nullptr;
  int64_t count = 0;
  for (const json& other : others) {
    if (other.at("name") != one.at("name")) continue;
    if (other.at("backend") == one.at("backend")) return &other;
    found = &other;
    ++count;
  }
  for (const json& own : cases) {
    if (&own != &one && own.at("name") == one.at("name")) ++count;
  }
  return count == 1 ? found : nullptr;
}

std::vector<std::string> without_partner(const json& cases, const json& others) {
  std::vector<std::string> names;
  for (const json& one : cases) {
    if (same_case(one, cases, others) == nullptr) {
      names.push_back(fmt::format("{} ({})", one.at("name").get<std::string>(),
                                  one.at("backend").get<std::string>()));
    }
  }
  return names;
}

}  // namespace

bool RunComparison::differs() const {
  return std::any_of(cases.begin(), cases.end(),
                     [](const CaseComparison& one) { return one.differs(); });
}

RunComparison compare_runs(const std::string& folder_a, const std::string& folder_b) {
  const json a = cases_of(folder_a), b = cases_of(folder_b);
  RunComparison comparison;
  try {
    for (const json& one : a) {
      const json* other = same_case(one, a, b);
      if (other != nullptr) comparison.cases.push_back(compare_case(one, *other));
    }
    comparison.only_a = without_partner(a, b);
    comparison.only_b = without_partner(b, a);
  } catch (const json::exception& error) {
    bad_run(fmt::format("a results.json lacks what is to be compared ({})", error.what()),
            "run it again with this shardproof");
  }
  if (comparison.cases.empty()) {
    bad_run(fmt::format("{} and {} have no case in common", folder_a, folder_b),
            "name two runs of the same scenarios");
  }
  return comparison;
}

std::string comparison_text(const RunComparison& comparison) {
  std::string text;
  int64_t differing = 0;
  for (const CaseComparison& one : comparison.cases) {
    text += fmt::format("{:<8}  {} on {}   {} tensors\n", one.differs() ? "DIFFERS" : "same",
                        one.name, one.backend, one.tensors);
    if (!one.differs()) continue;
    ++differing;
    if (!one.other.empty()) text += fmt::format("  case      {}\n", one.other);
    if (one.differing == 0) continue;
    text += fmt::format("  first     {}\n  on        {}\n  in all    {} of {} tensors differ\n",
                        one.first, one.where, one.differing, one.tensors);
  }
  for (const std::string& name : comparison.only_a) text += "only in A  " + name + "\n";
  for (const std::string& name : comparison.only_b) text += "only in B  " + name + "\n";
  return text + fmt::format("{} cases in both runs: {} the same to the bit, {} differ\n",
                            comparison.cases.size(),
                            static_cast<int64_t>(comparison.cases.size()) - differing, differing);
}

}  // namespace shardproof::sim
