// One factor over all elements: the size of an axis, its inverse, its square or its square root, or
// a quotient of counts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/judge/diff/tolerance.h"
#include "sim/judge/explain/count_quotient.h"
#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {

double factor_slack(const Symptoms& symptoms) {
  return symptoms.precision == Precision::kFloat64 ? 1e-6
                                                   : 8 * eps_of_precision(symptoms.precision);
}

namespace {

constexpr double kBetterByMany = 4;
constexpr double kNearOfScalar = 1e-2;   // sizes, squares and roots lie near any number
constexpr int64_t kFewestForFactor = 8;  // for a factor that is only approximately right

struct Meaning {
  double factor;
  std::string what;  // "; 2 is the size of dp"
  std::string likely;
  size_t axes = 0;           // number of axes in its name
  bool of_squares = false;   // of roots or squares: less likely, where a size fits too
  bool is_measured = false;  // not a count: programs may add a small number, as clipping does
  bool of_counts = false;    // of a count that the loss is divided by
};

// The products of sizes of axes, each with the fewest axes that give it and their names: "the size
// of dp x tp".
std::map<int64_t, std::pair<size_t, std::string>> mesh_sizes(const Mesh& mesh) {
  std::map<int64_t, std::pair<size_t, std::string>> sizes;
  for (const std::vector<std::string>& axes : sets_of_axes(mesh)) {
    int64_t size = 1;
    for (const std::string& axis : axes) size *= mesh.size(axis);
    auto& [fewest, name] = sizes[size];
    if (!name.empty() && axes.size() > fewest) continue;
    fewest = axes.size();
    name += fmt::format("{} {}", name.empty() ? "the size of" : " and of", fmt::join(axes, " x "));
  }
  return sizes;
}

// Counts that are not sizes of the mesh. Where one is equal to a size, both are named.
void add_counts(const Symptoms& symptoms, std::vector<Meaning>& meanings) {
  const auto add = [&](int64_t count, const std::string& name, const std::string& once_each,
                       const std::string& shared) {
    if (count < 2) return;
    const auto number = static_cast<double>(count);
    const std::string what = fmt::format("; {} is the number of {}", count, name);
    meanings.push_back({.factor = number, .what = what, .likely = once_each, .of_counts = true});
    meanings.push_back({.factor = 1 / number, .what = what, .likely = shared, .of_counts = true});
  };
  add(symptoms.microbatches, "microbatches", "not divided by the number of microbatches",
      "averaged over microbatches where a sum belongs, or only one counts");
  add(symptoms.chunks, "chunks of a rank", "counted by each chunk of a rank",
      "divided by a count that each chunk of a rank adds to, or only one chunk counts");
  if (symptoms.chunks > 1) {
    add(symptoms.chunks * symptoms.mesh.size("pp"), "stages", "counted by each stage",
        "divided by a count that each stage adds to, or only one stage counts");
  }
  const std::set<int64_t> holders = holders_on_pp(symptoms);
  if (std::ssize(holders) == symptoms.mesh.size("pp")) return;  // the size of the axis
  add(std::ssize(holders),
      fmt::format("stages' ranks that hold it (pp {})", fmt::join(holders, ", ")),
      "summed once too often over the stages that hold it",
      "averaged over the stages that hold it where a sum belongs");
}

// Where the gradients have the loss's factor, the loss was wrong before the backward: not its sum
// over an axis, which comes after it, but a count that it is divided by.
bool is_before_backward(const Symptoms& symptoms) {
  const ResultRow& row = *symptoms.rows.front();
  return row.kind == ObservationKind::kLoss && symptoms.gradient_factor != 0 &&
         std::fabs(symptoms.gradient_factor - row.factor) <=
             2 * factor_slack(symptoms) * std::fabs(row.factor);
}

// Whether one rank alone is wrong, while another has a right copy of its part, or a right part that
// is not all zeros, which have every factor: no sum or mean, of which each rank has a share.
bool is_of_one_rank(const Symptoms& symptoms) {
  std::set<int64_t> wrong;
  for (const ResultRow* row : symptoms.rows) {
    if (row->is_wrong()) wrong.insert(row->rank);
  }
  return wrong.size() == 1 && std::ranges::any_of(symptoms.rows, [&](const ResultRow* row) {
           const bool is_copy = std::ranges::count(row->replicas, *wrong.begin()) > 0;
           return !row->is_wrong() && row->count > 0 && (row->worst_error > 0 || is_copy);
         });
}

std::vector<Meaning> meanings_of(const Symptoms& symptoms) {
  std::vector<Meaning> meanings = {{-1, "", "the sign is wrong"}};
  // No sum over ranks enters a learning rate.
  if (symptoms.rows.front()->kind == ObservationKind::kRate) return meanings;
  for (const auto& [whole, named] : mesh_sizes(symptoms.mesh)) {
    const auto& [axes, name] = named;
    const auto size = static_cast<double>(whole);
    const std::string what = fmt::format("; {} is {}", whole, name);
    const std::string root = fmt::format("the square root of {}, {}", whole, name);
    if (is_of_one_rank(symptoms)) {
      meanings.push_back(
          {size, what, "on that rank alone: multiplied by it, or not divided by it", axes});
      meanings.push_back({1 / size, what, "on that rank alone: divided by it", axes});
    } else if (is_before_backward(symptoms)) {
      meanings.push_back(
          {size, what, "divided by a count that is not summed over that axis", axes});
      meanings.push_back({1 / size, what,
                          "divided by a count that is summed once too often over that axis", axes});
    } else {
      meanings.push_back(
          {size, what, "summed once too often over that axis, or not divided by its size", axes});
      meanings.push_back(
          {1 / size, what,
           "averaged over that axis where a sum belongs, or divided by its size twice", axes});
    }
    // Of a gradient a whole root is another count before it is the root of a size.
    const bool is_whole = std::floor(std::sqrt(size)) == std::sqrt(size);
    if (!is_whole || symptoms.rows.front()->kind != ObservationKind::kGradient) {
      meanings.push_back({std::sqrt(size), "; " + root,
                          "squares are summed once too often over that axis", axes, true});
      meanings.push_back({1 / std::sqrt(size), "; 1 over " + root,
                          "squares are averaged over that axis where a sum belongs", axes, true});
    }
    const std::string square = fmt::format("the square of {}, {}", whole, name);
    meanings.push_back({size * size, "; " + square,
                        "multiplied by that size where a division by it belongs", axes, true});
    meanings.push_back({1 / (size * size), "; 1 over " + square,
                        "divided by that size where a product with it belongs, or averaged over "
                        "that axis twice",
                        axes, true});
  }
  const ResultRow& row = *symptoms.rows.front();
  if (is_of_experts(row.name, std::ssize(row.global_shape))) {
    const int64_t all =
        symptoms.mesh.size("dp") * symptoms.mesh.size("cp") * symptoms.mesh.size("ulysses");
    const int64_t own = symptoms.mesh.size("edp");
    const auto factor = static_cast<double>(all) / static_cast<double>(own);
    if (all > own) {
      meanings.push_back(
          {factor, "",
           fmt::format("averaged over the {} rank{} that hold the same experts, where "
                       "the mean is over all {} that have other tokens",
                       own, own == 1 ? "" : "s", all)});
    }
  }
  const double clip = symptoms.clip_factor;
  if (clip < 1) {
    meanings.push_back(
        {clip, "; that is the clipping factor", "clipped where it should not be, or twice"});
    meanings.push_back({1 / clip, "; that undoes the clipping factor", "not clipped"});
    for (size_t i = meanings.size() - 2; i < meanings.size(); ++i) meanings[i].is_measured = true;
  }
  if (symptoms.clip_ratio > 1) {
    meanings.push_back({symptoms.clip_ratio, "; that is max_norm / norm",
                        "the clipping factor is not capped at 1"});
    meanings.back().is_measured = true;
  }
  add_counts(symptoms, meanings);
  if (is_before_backward(symptoms)) {
    std::stable_partition(meanings.begin(), meanings.end(),
                          [](const Meaning& meaning) { return meaning.of_counts; });
  }
  return meanings;
}

// The share of a row's difference that `factor` x golden explains. It follows from the row's best
// factor f and residual r, both relative to |actual| = 1: golden^2 = (1 - r^2) / f^2.
double share_of(const ResultRow& row, double factor) {
  const double residual = row.factor_residual * row.factor_residual;
  if (!(residual <= 1 - kLeastExplained) || row.factor == 0) return -1;
  const double golden = (1 - residual) / (row.factor * row.factor);
  const double beside = (row.factor - factor) * (row.factor - factor) * golden;
  if (beside > residual) return -1;  // the row's own factor is clearly another one
  const double left = residual + beside;
  const double difference = residual + (row.factor - 1) * (row.factor - 1) * golden;
  return difference > 0 ? 1 - left / difference : -1;
}

// The root mean square that `factor` x golden leaves in what the ranks hold; 0 where no values are.
double left_by(const Difference& difference, double factor) {
  double square = 0, count = 0;
  for (const Piece* piece : difference.symptoms.pieces) {
    for (size_t i = 0; i < piece->actual.size(); ++i) {
      const double left = piece->actual[i] - factor * piece->golden[i];
      square += left * left;
      ++count;
    }
  }
  return count > 0 ? std::sqrt(square / count) : 0;
}

// Whether a factor that fits has this meaning. In float64 nothing but rounding is left, which
// grows with the factor.
bool is_meant(const Difference& difference, double factor, const Meaning& meaning) {
  constexpr double kMostLeft = 32;  // allowances
  if (difference.symptoms.precision != Precision::kFloat64 || meaning.is_measured) return true;
  const double left = difference.symptoms.pieces.empty()
                          ? std::fabs(factor - meaning.factor) * difference.golden_size
                          : left_by(difference, meaning.factor);
  return left <= kMostLeft * std::max(1.0, std::fabs(meaning.factor)) * difference.allowance;
}

struct Fitting {
  double factor = 0;
  double share = -1;
  bool exact = false;
};

// The common factor of all rows within the precision, if there is one.
std::optional<double> exact_factor(const Rows& wrong, double slack) {
  const double factor = wrong.front()->factor;
  for (const ResultRow* row : wrong) {
    if (!(row->factor_residual <= slack)) return std::nullopt;
    if (!(std::fabs(row->factor - factor) <= 2 * slack * std::fabs(factor))) return std::nullopt;
  }
  if (!(std::fabs(factor - 1) > 2 * slack) || factor == 0) return std::nullopt;
  return factor;
}

Fitting nearly_fitting(const Rows& wrong, const std::vector<Meaning>& meanings) {
  Fitting best;
  int64_t count = 0;
  for (const ResultRow* row : wrong) count += row->count;
  if (count < kFewestForFactor) return best;
  for (const Meaning& meaning : meanings) {
    double share = 1;
    for (const ResultRow* row : wrong) share = std::min(share, share_of(*row, meaning.factor));
    if (share < kLeastExplained || share <= best.share) continue;
    best = {meaning.factor, share, false};
  }
  return best;
}

// If the loss scale, which gradients carry, is off by this factor, it is the only meaning.
std::optional<Meaning> loss_scale_meaning(const Symptoms& symptoms, const Rows& wrong,
                                          double factor, double near) {
  const double scale = symptoms.loss_scale_factor;
  if (scale == 1 || !(std::fabs(factor - scale) <= near * std::fabs(scale))) return std::nullopt;
  const bool itself = wrong.front()->kind == ObservationKind::kLossScale;
  return Meaning{scale, itself ? "" : "; so is the loss scale of this step",
                 "the loss scale grew or fell at another step than it should"};
}

// A wrong count of this factor is its only meaning. No loss is divided by a number of dropped
// routes.
std::optional<Meaning> count_meaning(const Symptoms& symptoms, double factor, double near) {
  for (const WrongCount& count : symptoms.wrong_counts) {
    if (!(count.actual > 0) || count.name == "metric.dropped_routes") continue;
    const double due = count.golden / count.actual;
    if (!(std::fabs(factor - due) <= near * std::fabs(due))) continue;
    return Meaning{due, count.text(), "divided by that count", 0, false, true, true};
  }
  return std::nullopt;
}

// A power of two from 2^7 on, as scales of losses are.
std::optional<Meaning> scale_meaning(const Symptoms& symptoms, double factor, double near) {
  constexpr double kLeast = 7;
  const double exponent = std::round(std::log2(factor));
  const double scale = std::exp2(exponent);
  const ObservationKind kind = symptoms.rows.front()->kind;
  const bool carries = kind == ObservationKind::kGradient || kind == ObservationKind::kGradNorm;
  if (!carries || !(exponent >= kLeast) || !(std::fabs(factor - scale) <= near * scale)) return {};
  return Meaning{
      scale, fmt::format("; 2^{:.0f}", exponent),
      fmt::format("not divided by {:.0f}: the loss scale, or a count of tokens or rows", scale)};
}

// All meanings of one number, since the sizes of axes and the number of microbatches may be equal.
// Nothing when none fits.
std::optional<Meaning> all_meanings_of(double factor, double near,
                                       const std::vector<Meaning>& meanings) {
  std::optional<Meaning> all;
  for (const Meaning& meaning : meanings) {
    if (!(std::fabs(factor - meaning.factor) <= near * std::fabs(meaning.factor))) continue;
    if (!all || (all->of_squares && !meaning.of_squares)) {
      all = meaning;
      continue;
    }
    if (meaning.of_squares && !all->of_squares) continue;
    all->what += meaning.what;
    all->likely += "; or " + meaning.likely;
  }
  return all;
}

// Unset when the precision does not show the factor well enough.
std::optional<Counts> counts_of(const Difference& difference, const Fitting& found) {
  // No count divides a parameter, a rate, nor what a program keeps in a buffer, such as an average.
  using enum ObservationKind;
  const ObservationKind kind = difference.wrong.front()->kind;
  if (kind == kBuffer || kind == kParameter || kind == kRate) return std::nullopt;
  if (!found.exact || difference.symptoms.precision != Precision::kFloat64) return std::nullopt;
  const auto is_apart = [&](const ResultRow* row) {
    return !(std::fabs(row->factor - found.factor) <= kOfCounts * std::fabs(found.factor));
  };
  if (std::any_of(difference.wrong.begin(), difference.wrong.end(), is_apart)) return std::nullopt;
  return quotient_of(found.factor);
}

}  // namespace

std::string WrongCount::text() const {
  return fmt::format("; {} is {:.6g} and should be {:.6g}", name, actual, golden);
}

std::optional<Proposal> propose_factor(const Difference& difference) {
  const Symptoms& symptoms = difference.symptoms;
  const Rows& wrong = difference.wrong;
  const double slack = factor_slack(symptoms);
  const std::vector<Meaning> meanings = meanings_of(symptoms);
  const bool all_scalar =
      std::all_of(wrong.begin(), wrong.end(), [](const ResultRow* row) { return row->count <= 1; });
  Fitting found;
  double near = 1e-12;
  if (const auto factor = exact_factor(wrong, slack)) {
    found = {*factor, 1, true};
    // The factor of many elements is known better than each of them.
    near = std::max(all_scalar ? std::min(slack, kNearOfScalar) : slack / kBetterByMany, 1e-4);
  } else if (!all_scalar) {
    found = nearly_fitting(wrong, meanings);
  }
  if (found.share < 0) return std::nullopt;
  std::optional<Meaning> meaning = loss_scale_meaning(symptoms, wrong, found.factor, near);
  const std::optional<Meaning> of_size = all_meanings_of(found.factor, near, meanings);
  // In float64 counts_of() finds the quotient, unless the size of an axis passes for it.
  const bool asks_counts =
      symptoms.precision != Precision::kFloat64 || (of_size && !is_before_backward(symptoms));
  if (!meaning && asks_counts) meaning = count_meaning(symptoms, found.factor, near);
  if (!meaning) meaning = of_size;
  if (!meaning) meaning = scale_meaning(symptoms, found.factor, near);
  if (meaning && found.exact && !is_meant(difference, found.factor, *meaning)) meaning.reset();
  if (all_scalar && !meaning) return std::nullopt;
  Proposal out{
      .pattern = fmt::format("{} is {}{} x golden", all_scalar ? "the value" : "every element",
                             found.exact ? "" : "about ", factor_text(found.factor)),
      .detail = "; the factor matches no size of the mesh",
      .description = kFreeNumber,
      .ranks = difference.ranks,
      .share = all_scalar ? -1 : found.share,
      .left = std::sqrt(1 - found.share) * std::fabs(found.factor - 1) * difference.golden_size};
  // The weights of a router's choice, which no count divides.
  if (!meaning && found.exact && wrong.front()->name.ends_with(".weights.output")) {
    out.likely =
        "a constant of the model that multiplies the weights of all routes, such as "
        "routed_scaling_factor, is left out, another one, or applied twice";
    return out;
  }
  if (!meaning) {
    const auto counts = counts_of(difference, found);
    if (!counts) return out;
    if (counts->due > 1 && counts->taken > 1) {
      out.detail =
          fmt::format("; {}/{}, which is not a size of the mesh", counts->due, counts->taken);
    }
    out.likely = words_for(*counts);
    return out;
  }
  out.detail = meaning->what;
  out.likely = meaning->likely;
  const auto plain = std::count_if(meanings.begin(), meanings.end(),
                                   [](const Meaning& one) { return !one.of_squares; });
  const auto choices =
      meaning->of_squares ? static_cast<double>(meanings.size()) : static_cast<double>(plain);
  out.description = std::log(choices) + kAxisNamed * static_cast<double>(meaning->axes);
  return out;
}

Explanation words_for_quotient(double factor) {
  const auto counts = quotient_of(factor);
  if (!counts) return {};
  return {.pattern = fmt::format("{}/{}", counts->due, counts->taken),
          .likely = words_for(*counts),
          .is_of_counts = true};
}

Explanation words_for_factor(double factor, const Symptoms& symptoms) {
  const auto meaning = all_meanings_of(factor, 1e-6, meanings_of(symptoms));
  if (!meaning) return {.pattern = factor_text(factor), .likely = ""};
  return {.pattern = factor_text(factor) + meaning->what, .likely = meaning->likely};
}

}  // namespace shardproof::sim::judge
