// Options of a case that change nothing in it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/option.h"

namespace shardproof::sim {

// The value of a key, whether the case has it as a member or not; none where it does not say, as of
// keys of the model that its family decides.
std::optional<nlohmann::json> value_of_key(const CaseSpec& spec, const std::string& path);

// "parallel.tp.async_grad is true, but parallel.tensor_parallel_size is 1: it has no effect", for
// each option that has another value than its default and not what it needs. Workloads, stages and
// settings without a member of their own count as what is needed.
std::vector<std::string> idle_options(const CaseSpec& spec);

// The same of keys that have no member, or no default of their own: `given` has what the file says
// of a key. build_case keeps it in CaseSpec::idle_keys, which idle_options repeats.
std::vector<std::string> idle_keys(
    const CaseSpec& spec,
    const std::function<std::optional<nlohmann::json>(const std::string&)>& given);

}  // namespace shardproof::sim
