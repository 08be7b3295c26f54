// Text about a difference that several hypotheses share, and text where none makes a claim. The
// text of a hypothesis's claim is in its own file. No code reads any of these texts.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim::judge {

// "on all ranks", "on rank 2 only", "on ranks 1, 3 (tp 1)"; "on rank 2, its only holder" when that
// rank alone is `among` those that hold the tensor.
std::string ranks_clause(const Mesh& mesh, const std::vector<int64_t>& ranks,
                         const std::vector<int64_t>& among);

// A number that is nearly 1 is written so that it differs from 1: "(1 + 3e-06)".
bool is_near_one(double factor);
std::string times_nearly_one(double factor);
// ", 1 over the size of dp" for 0.333 where dp has three ranks; "" where no axis has that size.
std::string size_of_factor(const Mesh& mesh, double factor);
// "2.00", "0.333333 (1/3)", "(1 + 3e-06)".
std::string factor_text(double factor);

// Follows a claim about only some of the wrong ranks.
inline constexpr const char* kOthersDiffer = "; the other wrong ranks are wrong in another way";

// "if the same case matches in float64, this is rounding in bfloat16".
std::string rounding_note(Precision precision);

// Differences that do not concern values.
// `which`: "; the odd one on .." or, where nothing tells, ": one on .., one on ..".
Explanation words_for_copies(size_t count, const std::string& which, bool are_right);
inline const Explanation kUnobserved = {"the golden has it, no rank observed it",
                                        "a slot was not called, or a gradient never arrived"};
// Of a tensor that other ranks observed, or that these observed in other microbatches; these are of
// the first of the ranks.
Explanation words_for_absence(const Mesh& mesh, const std::vector<int64_t>& ranks,
                              const std::vector<int64_t>& microbatches);
inline const Explanation kUncovered = {
    "the ranks together do not hold every element of it exactly once",
    "a sample, a token or a part of a parameter was dealt to no rank, or to two"};
Explanation words_for_lacking_addend(const std::string& lack, const std::string& axes);
// "; the addend of rank 1 is 0 everywhere".
std::string words_for_empty_addends(const std::vector<int64_t>& ranks);

}  // namespace shardproof::sim::judge
