#include "sim/judge/explain/factors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/judge/diff/tolerance.h"
#include "sim/judge/evidence/explained.h"

namespace shardproof::sim {
namespace {

using Rows = std::vector<const ResultRow*>;

constexpr int64_t kFewestForFactor = 8;  // for a factor that is only nearly right

// How exactly a factor must fit in this precision.
double factor_slack(const Symptoms& symptoms) {
  return symptoms.precision == "float64" ? 1e-6 : 8 * eps_of_precision(symptoms.precision);
}

std::string factor_text(double factor) {
  const double inverse = 1 / factor;
  if (std::fabs(factor) < 1 &&
      std::fabs(inverse - std::round(inverse)) < 1e-4 * std::fabs(inverse)) {
    return fmt::format("{:.6g} (1/{:.0f})", factor, inverse);
  }
  const bool whole = std::fabs(factor - std::round(factor)) < 1e-6;
  return whole ? fmt::format("{:.2f}", factor) : fmt::format("{:.6g}", factor);
}

struct Meaning {
  double factor;
  std::string what;  // "; 2 is the size of dp"
  std::string likely;
  bool of_squares = false;  // the farther-fetched one, where a size fits as well
};

void add_mesh_sizes(const Mesh& mesh, std::vector<Meaning>& meanings) {
  std::vector<double> products = {1};
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1) continue;
    for (size_t i = products.size(); i-- > 0;) {
      products.push_back(products[i] * static_cast<double>(axis.size));
    }
  }
  std::sort(products.begin(), products.end());
  products.erase(std::unique(products.begin(), products.end()), products.end());
  for (const double size : products) {
    if (size == 1) continue;
    const std::string name = mesh_size_named(mesh, size);
    meanings.push_back({size, fmt::format("; {:.0f} is {}", size, name),
                        "summed once too often over that axis, or not divided by its size"});
    meanings.push_back({1 / size, fmt::format("; {:.0f} is {}", size, name),
                        "averaged over that axis where a sum belongs, or divided by its size "
                        "twice"});
    meanings.push_back({std::sqrt(size), fmt::format("; the square root of {:.0f}, {}", size, name),
                        "squares are summed once too often over that axis", true});
    meanings.push_back({1 / std::sqrt(size),
                        fmt::format("; 1 over the square root of {:.0f}, {}", size, name),
                        "squares are averaged over that axis where a sum belongs", true});
  }
}

std::vector<Meaning> meanings_of(const Symptoms& symptoms) {
  std::vector<Meaning> meanings;
  add_mesh_sizes(symptoms.mesh, meanings);
  meanings.push_back({-1, "", "the sign is wrong"});
  const double clip = symptoms.clip_factor;
  if (clip < 1) {
    meanings.push_back(
        {clip, "; that is the clipping factor", "clipped where it should not be, or twice"});
    meanings.push_back({1 / clip, "; that undoes the clipping factor", "not clipped"});
  }
  if (symptoms.clip_ratio > 1) {
    meanings.push_back({symptoms.clip_ratio, "; that is max_norm / norm",
                        "the clipping factor is not capped at 1"});
  }
  const auto microbatches = static_cast<double>(symptoms.microbatches);
  if (microbatches > 1) {
    const std::string what = fmt::format("; {:.0f} is the number of microbatches", microbatches);
    meanings.push_back({microbatches, what, "not divided by the number of microbatches"});
    meanings.push_back({1 / microbatches, what,
                        "averaged over microbatches where a sum belongs, or only one counts"});
  }
  return meanings;
}

// How much of a row's difference `factor` x golden explains. From the best factor f of the row and
// its residual r, both relative to |actual| = 1: golden^2 = (1 - r^2) / f^2.
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

struct Fitting {
  double factor = 0;
  double share = -1;
  bool exact = false;
};

// The common factor of all rows, as exactly as the precision says.
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

// Gradients carry the loss scale: where it is off itself, by this factor, nothing else is meant.
std::optional<Meaning> loss_scale_meaning(const Symptoms& symptoms, const Rows& wrong,
                                          double factor, double near) {
  const double scale = symptoms.loss_scale_factor;
  if (scale == 1 || !(std::fabs(factor - scale) <= near * std::fabs(scale))) return std::nullopt;
  const bool itself = wrong.front()->name == kLossScale;
  return Meaning{scale, itself ? "" : "; so is the loss scale of this step",
                 "the loss scale grew or fell at another step than it should"};
}

// What one number can mean: the sizes of an axis and of the microbatches may be equal. Nothing
// where none fits.
std::optional<Meaning> all_meanings_of(double factor, double near,
                                       const std::vector<Meaning>& meanings) {
  std::optional<Meaning> all;
  for (const Meaning& meaning : meanings) {
    if (!(std::fabs(factor - meaning.factor) <= near * std::fabs(meaning.factor))) continue;
    if (!all || (all->of_squares && !meaning.of_squares)) {
      all = meaning;
      continue;
    }
    if (meaning.of_squares) continue;
    all->what += meaning.what;
    all->likely += "; or " + meaning.likely;
  }
  return all;
}

}  // namespace

std::optional<Explanation> explain_factor(const Symptoms& symptoms, const Rows& wrong,
                                          const std::string& on_which_ranks) {
  const double slack = factor_slack(symptoms);
  const std::vector<Meaning> meanings = meanings_of(symptoms);
  const bool all_scalar =
      std::all_of(wrong.begin(), wrong.end(), [](const ResultRow* row) { return row->count <= 1; });
  Fitting found;
  double near = 1e-12;
  if (const auto factor = exact_factor(wrong, slack)) {
    found = {*factor, 1, true};
    near = std::max(slack, 1e-4);
  } else if (!all_scalar) {
    found = nearly_fitting(wrong, meanings);
  }
  if (found.share < 0) return std::nullopt;
  std::optional<Meaning> meaning = loss_scale_meaning(symptoms, wrong, found.factor, near);
  if (!meaning) meaning = all_meanings_of(found.factor, near, meanings);
  if (all_scalar && !meaning) return std::nullopt;
  int64_t elements = 0;
  for (const ResultRow* row : wrong) elements += row->count;
  const char* subject = elements > 1 && !all_scalar ? "every element" : "the value";
  return Explanation{
      fmt::format("{} is {}{} x golden {}{}", subject, found.exact ? "" : "about ",
                  factor_text(found.factor), on_which_ranks, meaning ? meaning->what : ""),
      meaning ? meaning->likely : kNoMeaning, all_scalar ? -1 : found.share};
}

}  // namespace shardproof::sim
