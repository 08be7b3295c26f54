// What wrong ranks have in common: a problem, or what they found out. It is claimed of the ranks
// that share it, and of no other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

using Rows = std::vector<const ResultRow*>;

std::vector<int64_t> ranks_of(const Rows& rows);  // ascending, each once
// "on ranks 1, 3 (tp 1)": the ranks of `rows` among all that hold the tensor.
std::string clause_of(const Symptoms& symptoms, const Rows& rows);

// The problem that most wrong rows have.
std::optional<Explanation> explain_problem(const Symptoms& symptoms, const Rows& wrong);

// Found out by every wrong rank, the same on each.
std::optional<Explanation> explain_another_step(const Symptoms& symptoms, const Rows& wrong);
std::optional<Explanation> explain_another_tensor(const Symptoms& symptoms, const Rows& wrong);
std::optional<Explanation> explain_narrow_dtype(const Symptoms& symptoms, const Rows& wrong);
std::optional<Explanation> explain_share_of_update(const Symptoms& symptoms, const Rows& wrong);
// Found out by some of them.
std::optional<Explanation> explain_some_ranks(const Symptoms& symptoms, const Rows& wrong);

}  // namespace shardproof::sim
