// A workload that scenarios may name, and the rows of its options.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/row.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

// Properties of an option of a workload besides those of row.h. `fuzz` and `shrink` fit the options
// of their cases by them; what a mesh or another option forbids, the workload itself refuses.
struct CutOver {  // each rank of this axis holds an equal part, where an option has a value
  std::string axis;
  std::string where = "";  // "": always
  nlohmann::json is = true;
};
struct CountsRanks {  // the ranks of this axis
  std::string axis;
  std::string named_by = "";  // the option that names the axis; "": always `axis`
};
struct NotBeside {  // not with this value while another option has a value
  nlohmann::json own;
  std::string other;
  nlohmann::json is = true;
};

// The usual value gives the type: an integer may stand for a fraction, not vice versa. An option
// whose row says no Range takes finite numbers, and integers of at most kMostInteger in size.
//
//   {"hidden", 12, "Features that are cut over tp", Range{0, kMaxSize}, CutOver{"tp"}}
struct WorkloadOption : Option {
  static constexpr int64_t kMostInteger = (int64_t{1} << 31) - 1;

  template <class... About>
  WorkloadOption(const std::string& name, nlohmann::json usual, const char* about = "",
                 const About&... properties)
      : WorkloadOption(name, std::move(usual), std::string(about)) {
    (add_to(*this, properties), ...);
  }
  WorkloadOption(const std::string& name, nlohmann::json usual, std::string about);

  friend void add_to(WorkloadOption& option, const CutOver& cut) { option.cuts.push_back(cut); }
  friend void add_to(WorkloadOption& option, const CountsRanks& ranks) {
    option.counts.push_back(ranks);
  }
  friend void add_to(WorkloadOption& option, const NotBeside& other) {
    option.excludes.push_back(other);
  }

  std::vector<CutOver> cuts = {};
  std::vector<CountsRanks> counts = {};  // one at most
  std::vector<NotBeside> excludes = {};
};
using WorkloadOptions = std::vector<WorkloadOption>;

// {name: usual value}
nlohmann::json usual_values(const WorkloadOptions& options);

struct KnownWorkload {
  std::string name;
  std::string about;
  WorkloadOptions options = {};
};

// Those of this workload; none for an unknown name.
const WorkloadOptions& options_of(const std::vector<KnownWorkload>& known, const std::string& name);

// {name: {about, options: {name: {usual, about, choices, range}}}}, of `schema --workloads`.
nlohmann::json workload_table(const std::vector<KnownWorkload>& known);

// Throws Error(kBadInput) at the position in the file for an unknown workload.
void check_workload(const Settings& settings, const std::vector<KnownWorkload>& known);
// The workload's options, those of `given` in place of the usual ones. Calls `refuse`, which
// throws, for an unknown option, and for a value of another type, outside of its range or of its
// choices.
using Refuse = std::function<void(const std::string& what, const std::string& fix)>;
nlohmann::json checked_options(const KnownWorkload& workload, const nlohmann::json& given,
                               const Refuse& refuse);
// Sets the workload and its options. Throws Error(kBadInput) at the position in the file as
// checked_options says, and for keys of a model, which the workload lacks.
void set_workload(const Settings& settings, const std::vector<KnownWorkload>& known,
                  CaseSpec& spec);

}  // namespace shardproof::sim
