// Every option that cases are drawn over, and the kinds of its values: each name of an enum; of a
// number the default, the least, even and odd ones, those around a block of the code, and larger
// ones.
//
// The options are the rows of the option table, so a new row is drawn without a line here, and the
// options of registered workloads, as "options.<workload>.<option>". Texts and maps take the values
// that the scenarios of the repository give them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/case/option.h"
#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

struct DrawnOption : Option {
  std::vector<nlohmann::json> candidates = {};
  bool restricted = false;    // a case has one of the candidates, even if the default is another
  std::string records = {};   // of an attribute of records: the key of their list
  std::string workload = {};  // of an option of a registered workload: its name
  // The last part of the path: the name of the attribute, or of the workload's option.
  std::string name() const { return path.substr(path.rfind('.') + 1); }
};

// One kind of value of one option.
struct ValueKind {
  size_t option;
  std::string label;  // "fsdp", "default", "odd"
  std::vector<nlohmann::json> values = {};
};

class Catalog {
 public:
  // `scenarios`: the settings of cases that match.
  Catalog(const std::vector<KnownWorkload>& workloads, std::vector<CaseSettings> scenarios);
  // From now on this key has these values alone.
  void restrict_to(const std::string& path, std::vector<nlohmann::json> values);

  bool allows(const CaseSettings& settings) const;

  const std::vector<DrawnOption>& options() const { return options_; }
  const std::vector<ValueKind>& kinds() const { return kinds_; }
  // "parallel.data_parallel=fsdp"
  std::string describe(size_t kind) const;
  // The kinds of values that have an effect in a case, ascending.
  std::vector<size_t> kinds_in(const CaseSettings& settings) const;
  // The workloads that are drawn.
  const std::vector<nlohmann::json>& workloads() const;
  // The kinds of the options of each registered workload that is drawn, by its name.
  const std::map<std::string, std::vector<size_t>>& own_kinds() const { return own_kinds_; }
  // Kinds of values at which a piece of the code of models takes another way, with the code's name,
  // and other kinds than defaults of what the same code reads; none where no model is drawn.
  const std::vector<std::pair<size_t, std::string>>& edge_kinds() const { return edge_kinds_; }
  std::vector<size_t> kinds_of_code(const std::string& code) const;
  // Settings of a case of the repository that runs this registered workload.
  const std::vector<CaseSettings>& cases_of(const std::string& workload) const;

 private:
  void make_kinds();
  void add_kind(size_t option, const nlohmann::json& value, std::vector<size_t>& found) const;

  std::vector<DrawnOption> options_;
  std::vector<ValueKind> kinds_;
  std::map<std::pair<size_t, std::string>, size_t> kind_of_;
  std::map<std::string, std::vector<size_t>> own_kinds_;
  std::vector<std::pair<size_t, std::string>> edge_kinds_;
  std::map<std::string, std::vector<CaseSettings>> cases_;  // by workload
};

std::string label_of(const Option& option, const nlohmann::json& value);

}  // namespace shardproof::sim::explore
