// The facts that a rank finds about a wrong tensor while it has the whole golden, with their
// numbers. wording.h turns them into text, which no code reads.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace shardproof::sim::judge {

// The whole tensor equals the golden tensor of this name after another step.
struct EqualsStep {
  int64_t step = 0;
  bool is_later = false;
  bool operator==(const EqualsStep&) const = default;
};
// At least two elements are wrong, and all wrong ones equal the golden of this earlier step.
struct PartEqualsStep {
  int64_t step = 0;
  bool operator==(const PartEqualsStep&) const = default;
};
// The tensor is the sum of the golden tensors of two steps.
struct SumOfSteps {
  int64_t before = 0, now = 0;
  bool operator==(const SumOfSteps&) const = default;
};
// A weight moved by this share of the golden update.
struct ShareOfUpdate {
  double share = 1;
  bool operator==(const ShareOfUpdate& other) const {
    return std::fabs(share - other.share) <= 0.02 * std::fabs(share);
  }
};
// The whole tensor equals another tensor of the golden.
struct EqualsTensor {
  std::string name;
  bool operator==(const EqualsTensor&) const = default;
};
// Every value is representable in a narrower dtype and is near the golden.
struct ValuesOf {
  std::string dtype;
  bool operator==(const ValuesOf&) const = default;
};
// Every value is a float32 whose error is a rounding of this dtype: a sum of such values.
struct AddendsThrough {
  std::string dtype;
  bool operator==(const AddendsThrough&) const = default;
};

// Of a selection of experts: the golden's least chosen score less the greatest that it left out, at
// the first of the rank's tokens that chose others, and the greatest of all these tokens.
struct RouteMargins {
  int64_t token = 0;  // sample * S + position
  double first = 0, greatest = 0;
  bool operator==(const RouteMargins&) const = default;
};
// The gradient of a router's logits is the golden with so many times the parts that the balancing
// loss and the z loss add to it. NaN where the rank's tokens have no such part.
struct SideLossParts {
  double balance = 1, z = 1;
  bool operator==(const SideLossParts& other) const {
    return std::fabs(balance - other.balance) <= 1e-6 && std::fabs(z - other.z) <= 1e-6;
  }
};
// Each of these experts of the rank has the golden's values of another: that of the same place in
// `sources`.
struct OtherExperts {
  std::vector<int64_t> experts, sources;
  bool operator==(const OtherExperts&) const = default;
};
// Each wrong sum of experts of the rank is a sum of the golden's results of single experts for
// single tokens, with the golden's weights: how it differs from the golden's choice of them.
struct ExpertResults {
  int64_t tokens = 0;          // wrong ones
  int64_t lost = 0, kept = 0;  // routes without a result; with one, where the golden drops them
  int64_t unweighted = 0;      // tokens whose results have no weights
  int64_t of_experts = 0;      // routes with another expert's result for their token
  int64_t several = 0;         // routes with the results of several experts for their token
  int64_t of_tokens = 0;       // routes with a result for another token
  double choices = 0;          // the logarithm of the number of sums that were tried
  // Of the first such route: its token and expert, and those whose result it has; -1: none.
  std::vector<int64_t> first = {};
  bool operator==(const ExpertResults&) const = default;
};
// The tensor is what the golden's numbers give by another computation, by its name in
// sim/judge/explain/computations.cpp.
struct OtherComputation {
  std::string name;
  int64_t which = 0, count = 0;
  double factor = 1;
  std::vector<int64_t> places = {};
  bool operator==(const OtherComputation& other) const {
    return name == other.name && which == other.which && count == other.count &&
           std::fabs(factor - other.factor) <= 1e-6 * std::fabs(factor);
  }
};

using Evidence = std::variant<EqualsStep, PartEqualsStep, SumOfSteps, ShareOfUpdate, EqualsTensor,
                              ValuesOf, AddendsThrough, RouteMargins, SideLossParts, OtherExperts,
                              ExpertResults, OtherComputation>;

// Whether a name is that of the experts that a router chose, [B, S, K].
inline bool is_route_ids(std::string_view name) { return name.ends_with(".ids.output"); }
// Whether a name is that of the sums of experts of a layer, [B, S, E].
inline bool is_sum_of_experts(std::string_view name) { return name.ends_with(".experts.output"); }
// Whether a tensor of this name has the weights of all experts of a layer, or what training makes
// of them, with an expert at each index of dim 0.
inline bool is_of_experts(std::string_view name, int64_t dims) {
  const size_t at = name.find(".experts.");
  return at != name.npos && name.find("grad_input") == name.npos && !name.ends_with(".output") &&
         (dims >= 3 || (dims == 2 && name.ends_with("_bias")));
}

// Turns evidence into text.

// For example "equals the golden of step 1: stale, it was not updated". Empty for what a hypothesis
// of its own puts into words.
std::string text_of(const Evidence& evidence);

}  // namespace shardproof::sim::judge
