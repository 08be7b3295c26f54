#include "sim/report/compare_runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/count_of.h"
#include "base/error.h"
#include "base/read_text.h"
#include "observe/observation_kind.h"
#include "sim/case/names.h"
#include "sim/report/results_json.h"

namespace shardproof::sim::report {

namespace {

using nlohmann::json;

json results_of(const std::string& path) {
  json results = read_json_object(path, kMaxResultsBytes);
  if (results.value("format", json()) != kResultsFormat ||
      !results.value("cases", json()).is_array()) {
    throw_bad_input(path + " was not written by this version of shardproof", "run it again");
  }
  return results;
}

std::string folder_of(const std::string& given) {
  return std::filesystem::is_directory(given) ? given
                                              : std::filesystem::path(given).parent_path().string();
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
    throw_bad_input("a results.json has a tensor without one digest for each rank", "run it again");
  }
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < a.size(); ++rank) {
    if (a[rank] != b[rank]) ranks.push_back(rank);
  }
  if (ranks.empty()) return "";
  const auto text = [](const json& digest) {
    return digest.is_string() ? digest.get<std::string>() : std::string("not observed");
  };
  return fmt::format("{}: {} in A, {} in B{}", ranks_text(ranks), text(a[ranks[0]]),
                     text(b[ranks[0]]),
                     ranks.size() > 1 ? fmt::format(" (rank {})", ranks[0]) : "");
}

// What the folders hold of the values of one case: amounts by step and name, of all ranks.
class CaseAmounts {
 public:
  // `a`, `b`: the files of the tensors that failed first; one that is not there has no tensors.
  CaseAmounts(const std::string& a, const std::string& b) {
    if (!std::filesystem::is_regular_file(a) || !std::filesystem::is_regular_file(b)) return;
    for (const auto& [name, amount] : amounts_of_files(a, b)) {
      if (name.ends_with("/actual")) amounts_[tensor_of(name)].add(amount);
    }
  }

  std::string text(const json& a, const json& b) const {
    const int64_t step = a.at("step");
    const std::string name = a.at("name");
    const auto found = amounts_.find(step > 1 ? fmt::format("{}@{}", name, step) : name);
    if (found != amounts_.end()) return amount_text(found->second);
    return shares_text(a, b);
  }

 private:
  // "rank1/grad.x@2#1/actual" is a piece of "grad.x@2".
  static std::string tensor_of(const std::string& name) {
    const std::string inner = name.substr(name.find('/') + 1, name.rfind('/') - name.find('/') - 1);
    return inner.substr(0, inner.find('#'));
  }

  // The distance of each run from its golden. A tensor that no rank judged has none.
  static std::string shares_text(const json& a, const json& b) {
    const json &of_a = a.at("worst_ratio"), &of_b = b.at("worst_ratio");
    const bool judged = a.at("outcome") != "not_judged" && b.at("outcome") != "not_judged";
    if (!judged || !of_a.is_number() || !of_b.is_number()) return "";
    return fmt::format("from the golden {:.3g} of an allowance in A, {:.3g} in B",
                       of_a.get<double>(), of_b.get<double>());
  }

  std::map<std::string, Amount> amounts_;
};

std::string text_of(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// Compares tensors in the order of execution; those that only B has come last.
void compare_tensors(const json& a, const json& b, const CaseAmounts& amounts,
                     CaseComparison& found) {
  const auto note = [&](const json& tensor, const std::string& where, const std::string& amount) {
    found.differing.push_back({title_of(tensor), where, amount});
  };
  const auto count = [&found](const json& tensor) {
    ++found.tensors;
    const auto name = tensor.at("name").get<std::string>();
    found.fed += kind_of_name(Phase::kStep, name) == ObservationKind::kFed ? 1 : 0;
  };
  std::map<ObservedName, const json*> of_b;
  for (const json& tensor : b.at("tensors")) of_b[key_of(tensor)] = &tensor;
  for (const json& tensor : a.at("tensors")) {
    count(tensor);
    const auto other = of_b.find(key_of(tensor));
    if (other == of_b.end()) {
      note(tensor, "only A has it", "");
      continue;
    }
    const std::string where = digest_difference(tensor.at("digest"), other->second->at("digest"));
    if (!where.empty()) note(tensor, where, amounts.text(tensor, *other->second));
    of_b.erase(other);
  }
  for (const json& tensor : b.at("tensors")) {
    if (of_b.count(key_of(tensor)) == 0) continue;
    count(tensor);
    note(tensor, "only B has it", "");
  }
}

// Compares what every run keeps of a case: for each step and phase a digest of each rank.
void compare_digests(const json& a, const json& b, CaseComparison& found) {
  const auto place_of = [](const json& entry) {
    return std::pair(entry.at("step").get<int64_t>(), entry.at("phase").get<std::string>());
  };
  std::map<std::pair<int64_t, std::string>, const json*> of_b;
  for (const json& entry : b.at("digests")) of_b[place_of(entry)] = &entry;
  found.by_digests = true;
  const auto note = [&](const json& entry, const std::string& where) {
    const int64_t step = entry.at("step");
    found.differing.push_back({fmt::format("the tensors of {}{}", text_of(entry.at("phase")),
                                           step > 0 ? fmt::format(" of step {}", step) : ""),
                               where, ""});
  };
  const auto count = [&found](const json& entry) {
    found.tensors += entry.at("tensors").get<int64_t>();
    found.fed += entry.value("fed", 0);
  };
  for (const json& entry : a.at("digests")) {  // in the order of execution
    count(entry);
    const auto other = of_b.extract(place_of(entry));
    if (other.empty()) {
      note(entry, "only A has them");
      continue;
    }
    const std::string where = digest_difference(entry.at("digest"), other.mapped()->at("digest"));
    if (!where.empty()) note(entry, where);
  }
  for (const auto& [place, entry] : of_b) {
    count(*entry);
    note(*entry, "only B has them");
  }
}

std::vector<std::string> other_settings(const json& a, const json& b) {
  std::vector<std::string> settings;
  for (const char* key : {"workload", "precision", "steps", "data_parallel", "sequence_parallel",
                          "device", "backend"}) {
    if (a.at(key) == b.at(key)) continue;
    settings.push_back(
        fmt::format("other {}: {} in A, {} in B", key, text_of(a.at(key)), text_of(b.at(key))));
  }
  if (a.at("mesh").at("text") != b.at("mesh").at("text")) {
    settings.push_back(fmt::format("other mesh: {} in A, {} in B", text_of(a["mesh"]["text"]),
                                   text_of(b["mesh"]["text"])));
  }
  // A result of an earlier program has none of these.
  const auto rows = [](const json& of) { return of.value("sample_rows", json()); };
  if (rows(a) != rows(b)) {
    const auto text = [](const json& count) { return count.is_null() ? "all" : count.dump(); };
    settings.push_back(
        fmt::format("other sample_rows: {} in A, {} in B", text(rows(a)), text(rows(b))));
  }
  const std::string of_a = a.value("golden", ""), of_b = b.value("golden", "");
  if (settings.empty() && !of_a.empty() && !of_b.empty() && of_a != of_b) {
    settings.emplace_back("other settings or files of the model, the batch or the optimizer");
  }
  return settings;
}

// Why the tensors of the ranks are not the same ones; "" when they are.
std::string not_comparable(const json& a, const json& b) {
  for (const char* key : {"world_size", "precision"}) {
    if (a.at(key) != b.at(key)) return fmt::format("with another {} tensors differ", key);
  }
  return a.at("mesh").at("text") == b.at("mesh").at("text")
             ? ""
             : "on another mesh ranks hold other parts";
}

// The commands that run the case of A and that of B again; one where they are equal.
std::vector<std::string> records_of(const json& a, const json& b) {
  std::vector<std::string> commands = {text_of(a.at("replay"))};
  if (b.at("replay") != a.at("replay")) commands.push_back(text_of(b.at("replay")));
  return commands;
}

CaseComparison compare_case(const json& a, const json& b, const std::string& folder_a,
                            const std::string& folder_b) {
  CaseComparison found;
  found.name = a.at("name");
  found.backend = a.at("backend");
  if (a.at("backend") != b.at("backend")) {  // a judged run has none
    const auto of_b = b.at("backend").get<std::string>();
    found.backend += (found.backend.empty() || of_b.empty() ? "" : " and ") + of_b;
  }
  if (a.at("seed") != b.at("seed")) {
    found.other_seed =
        fmt::format("{} in A, {} in B", text_of(a.at("seed")), text_of(b.at("seed")));
    return found;
  }
  if (is_model_workload(text_of(a.at("workload")))) found.record = records_of(a, b);
  found.settings = other_settings(a, b);
  found.other = not_comparable(a, b);
  if (a.at("verdict") != b.at("verdict")) {
    found.other =
        fmt::format("verdict {} in A, {} in B{}{}", text_of(a.at("verdict")),
                    text_of(b.at("verdict")), found.other.empty() ? "" : "; ", found.other);
  }
  if (!not_comparable(a, b).empty()) return found;
  if (a.value("kept", "all") != "all" || b.value("kept", "all") != "all") {
    found.record = records_of(a, b);
    compare_digests(a, b, found);
    return found;
  }
  const auto file = [](const std::string& folder, const json& one) {
    return fmt::format("{}/tensors/{}.safetensors", folder, text_of(one.at("id")));
  };
  compare_tensors(a, b, CaseAmounts(file(folder_a, a), file(folder_b, b)), found);
  return found;
}

std::string program_of(const json& results) {
  const json& run = results.at("run");
  const std::string digest = run.value("program", "");
  return text_of(run.at("version")) + (digest.empty() ? "" : ", digest " + digest);
}

// Whether `judge --out` made the folder: its one case has the name of a recorded run's folder.
bool is_judged(const json& results) {
  return results.at("run").at("command").get<std::string>().starts_with("shardproof judge ") &&
         results.at("cases").size() == 1;
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
      const std::string backend = text_of(one.at("backend"));  // "" of a judged run
      names.push_back(text_of(one.at("name")) + (backend.empty() ? "" : " (" + backend + ")"));
    }
  }
  return names;
}

}  // namespace

bool RunComparison::differs() const {
  return std::ranges::any_of(cases, [](const CaseComparison& one) { return one.differs(); });
}

RunComparison compare_runs(const std::string& folder_a, const std::string& folder_b) {
  const json results_a = results_of(results_file(folder_a)),
             results_b = results_of(results_file(folder_b));
  const json &a = results_a.at("cases"), &b = results_b.at("cases");
  RunComparison comparison;
  try {
    const bool are_judged = is_judged(results_a) && is_judged(results_b);
    const std::string program_a = program_of(results_a), program_b = program_of(results_b);
    if (program_a != program_b) {
      comparison.program = fmt::format("other program: {} in A, {} in B", program_a, program_b);
    }
    for (const json& one : a) {
      const json* other = are_judged ? &b.at(0) : same_case(one, a, b);
      if (other == nullptr) continue;
      comparison.cases.push_back(
          compare_case(one, *other, folder_of(folder_a), folder_of(folder_b)));
      if (!are_judged) continue;
      CaseComparison& found = comparison.cases.back();
      found.record.clear();  // what was recorded is there
      if (other->at("name") != found.name) found.name += " and " + text_of(other->at("name"));
    }
    if (!are_judged) {
      comparison.only_a = without_partner(a, b);
      comparison.only_b = without_partner(b, a);
    }
  } catch (const json::exception& error) {
    throw_bad_input(
        fmt::format("a results.json lacks what is to be compared ({})", json_problem(error)),
        "run it again with this shardproof");
  }
  if (comparison.cases.empty()) {
    throw_bad_input(fmt::format("{} and {} have no case in common", folder_a, folder_b),
                    "name two runs of the same scenarios");
  }
  const auto all = [&comparison](const auto& holds) {
    return std::ranges::all_of(comparison.cases, holds);
  };
  if (all([](const CaseComparison& one) { return !one.other_seed.empty(); })) {
    throw_bad_input(fmt::format("other seed: nothing to compare (seed {})",
                                comparison.cases.front().other_seed),
                    "run both with the same --seed");
  }
  if (all([](const CaseComparison& one) { return one.tensors == 0 && !one.differs(); })) {
    throw_bad_input(fmt::format("nothing to compare: none of the {} in both runs has a tensor",
                                count_of(std::ssize(comparison.cases), "case")),
                    "name two runs whose cases ran to their end");
  }
  return comparison;
}

}  // namespace shardproof::sim::report
