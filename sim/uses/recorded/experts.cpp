// What the experts of a layer tell of a difference.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/count_of.h"
#include "base/quantile.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr std::string_view kExperts = "experts.";
constexpr size_t kListedExperts = 4;
constexpr double kExpertRounding = 1e-9;  // of the tensor's largest value, in float64
constexpr double kFar = 0.5;              // of the size of the reference's gradient
constexpr double kContrast = 1.0 / 8;     // what is near differs by this share of what is far

// Where the number of an expert stands in a name, "experts.3.": its begin and end; empty if none.
std::optional<std::pair<size_t, size_t>> number_in(const std::string& name) {
  for (size_t at = name.find(kExperts); at != name.npos; at = name.find(kExperts, at + 1)) {
    const size_t begin = at + kExperts.size();
    const size_t end = name.find_first_not_of("0123456789", begin);
    if (end != name.npos && end > begin && end - begin < 7 && name[end] == '.')
      return std::pair(begin, end);
  }
  return std::nullopt;
}

// The name without the number of its expert.
std::string family_of(const std::string& name) {
  const auto number = number_in(name);
  return number ? name.substr(0, number->first) + name.substr(number->second) : name;
}

// The dim of the experts in a stacked weight or bias; unset for others.
std::optional<size_t> expert_dim(const RecordedPiece& piece) {
  const size_t dims = piece.global_shape.size(), of_one = piece.name.ends_with("bias") ? 1 : 2;
  if (dims <= of_one || piece.place.kind != Place::Kind::kBox) return std::nullopt;
  if (piece.name.find("experts") == piece.name.npos) return std::nullopt;
  const size_t dim = dims - of_one - 1;
  const bool is_alone = std::all_of(piece.shape.begin(), piece.shape.begin() + dim,
                                    [](int64_t size) { return size == 1; });
  return is_alone ? std::optional(dim) : std::nullopt;
}

// A rank's values of one expert, or of a part of it.
struct Block {
  const Gradient* of;
  int64_t expert, experts;
  size_t begin, size;  // of the piece's elements

  const RecordedPiece& piece() const { return *of->piece; }
  const double* actual() const { return of->actual.data() + begin; }
  const double* expected() const { return of->expected.data() + begin; }
};

// The number of experts that the reference has under the names of this family.
int64_t count_experts(const Reference& reference, const RecordedPiece& piece) {
  const auto [begin, end] = *number_in(piece.name);
  int64_t count = 0;
  for (;; ++count) {
    std::string name = piece.name;
    name.replace(begin, end - begin, std::to_string(count));
    if (!reference.record.find(piece.phase, piece.step, name)) return count;
  }
}

std::vector<Block> blocks_of(const std::vector<Gradient>& pieces, const Reference* reference) {
  std::vector<Block> blocks;
  for (const Gradient& one : pieces) {
    const RecordedPiece& piece = *one.piece;
    if (const auto number = number_in(piece.name)) {
      const std::string digits = piece.name.substr(number->first, number->second - number->first);
      blocks.push_back({&one, std::stoll(digits), reference ? count_experts(*reference, piece) : 0,
                        0, one.actual.size()});
    } else if (const auto dim = expert_dim(piece)) {
      const auto held = static_cast<size_t>(piece.shape[*dim]);
      for (size_t i = 0; i < held; ++i) {
        const size_t size = one.actual.size() / held;
        blocks.push_back({&one, piece.place.offset[*dim] + static_cast<int64_t>(i),
                          piece.global_shape[*dim], i * size, size});
      }
    }
  }
  return blocks;
}

bool is_equal(const double* values, const double* expected, size_t size, double allowance) {
  for (size_t i = 0; i < size; ++i) {
    if (!(std::fabs(values[i] - expected[i]) <= allowance)) return false;
  }
  return true;
}

bool is_zero(const double* values, size_t size) {
  return std::all_of(values, values + size, [](double value) { return value == 0; });
}

// The reference's values of another expert at the place of this block.
std::vector<double> values_of(const Reference& reference, const Block& block, int64_t expert) {
  RecordedPiece place = block.piece();
  const GoldenTensor* golden = block.of->golden;
  if (const auto number = number_in(place.name)) {
    place.name.replace(number->first, number->second - number->first, std::to_string(expert));
    golden = reference.record.find(place.phase, place.step, place.name);
  } else {
    const size_t dim = expert_dim(place).value();
    place.shape[dim] = 1;
    place.place.offset[dim] = expert;
  }
  if (!golden || golden->value.sizes() != place.global_shape || !golden->value.holds<double>())
    return {};
  std::vector<double> values;
  const double* all = golden->value.data<double>();
  plan_of(place).for_each_run([&](int64_t, int64_t global, int64_t length) {
    values.insert(values.end(), all + global, all + global + length);
  });
  return values;
}

// The expert whose values the block has in place of its own; -1 for none.
int64_t source_of(const Reference& reference, const Block& block, double allowance) {
  if (is_zero(block.actual(), block.size)) return -1;
  for (int64_t expert = 0; expert < block.experts; ++expert) {
    if (expert == block.expert) continue;
    const std::vector<double> values = values_of(reference, block, expert);
    if (values.size() == block.size &&
        is_equal(block.actual(), values.data(), block.size, allowance))
      return expert;
  }
  return -1;
}

// Whether each wrong expert has the values of the one with its number among those of its rank.
bool has_local_numbers(const std::map<int64_t, int64_t>& sources,
                       const std::map<int64_t, std::set<int64_t>>& held) {
  return std::all_of(sources.begin(), sources.end(), [&](const auto& one) {
    return std::all_of(held.begin(), held.end(), [&](const auto& rank) {
      const auto at = rank.second.find(one.first);
      return at == rank.second.end() || std::distance(rank.second.begin(), at) == one.second;
    });
  });
}

// "on rank 1 only (ep 1)", "on ranks 2, 3 (dp 1)", "on all ranks".
std::string place_of(const Mesh& mesh, const std::set<int64_t>& ranks,
                     const std::set<int64_t>& all) {
  if (ranks == all) return "on all ranks";
  std::string text = "on " + ranks_text(ranks) + (ranks.size() > 1 ? "" : " only");
  std::string axes;
  for (const std::string& axis : mesh.names()) {
    const int64_t place = mesh.coordinate(axis, *ranks.begin());
    const bool is_theirs = std::all_of(all.begin(), all.end(), [&](int64_t rank) {
      return (mesh.coordinate(axis, rank) == place) == ranks.contains(rank);
    });
    if (is_theirs) axes += fmt::format("{}{} {}", axes.empty() ? "" : ", ", axis, place);
  }
  return axes.empty() ? text : fmt::format("{} ({})", text, axes);
}

std::string listed(const std::set<int64_t>& experts) {
  const size_t shown = std::min(experts.size(), 2 * kListedExperts);
  return fmt::format("expert{} {}{}", experts.size() > 1 ? "s" : "",
                     fmt::join(experts.begin(), std::next(experts.begin(), shown), ", "),
                     shown < experts.size() ? " .." : "");
}

}  // namespace

bool explain_experts(const RecordedRun& run, const Reference& reference, judge::Divergence& found) {
  const std::string family = family_of(found.tensor);
  const std::vector<Gradient> pieces =
      pieces_beside(run, reference, found.step, [&](const RecordedPiece& piece) {
        return piece.phase == found.phase && piece.kind == found.worst.kind &&
               family_of(piece.name) == family;
      });
  std::map<int64_t, int64_t> sources;         // of wrong experts; -1: not known
  std::map<int64_t, std::set<int64_t>> held;  // by rank
  std::set<int64_t> right, wrong, idle, wrong_ranks, ranks;
  for (const Block& block : blocks_of(pieces, &reference)) {
    const double allowance = kExpertRounding * block.of->golden->scale;
    held[block.piece().rank].insert(block.expert);
    ranks.insert(block.piece().rank);
    if (is_zero(block.expected(), block.size) && is_zero(block.actual(), block.size)) {
      idle.insert(block.expert);
      continue;
    }
    if (is_equal(block.actual(), block.expected(), block.size, allowance)) {
      right.insert(block.expert);
      continue;
    }
    wrong.insert(block.expert);
    wrong_ranks.insert(block.piece().rank);
    const int64_t source = source_of(reference, block, allowance);
    const auto [known, is_first] = sources.emplace(block.expert, source);
    if (!is_first && known->second != source) known->second = -1;
  }
  if (wrong.empty()) return false;
  const bool are_known =
      std::all_of(sources.begin(), sources.end(), [](const auto& one) { return one.second >= 0; });
  if (!are_known) {
    for (const int64_t expert : wrong) {
      right.erase(expert);
      idle.erase(expert);
    }
    for (const int64_t expert : right) idle.erase(expert);
    if (!right.empty()) {
      found.pattern +=
          fmt::format("; {} of {} {} wrong, and the others are right", listed(wrong),
                      wrong.size() + right.size() + idle.size(), wrong.size() > 1 ? "are" : "is");
    }
    return false;
  }
  std::vector<std::string> texts;
  for (const auto& [expert, source] : sources) {
    if (texts.size() == kListedExperts) break;
    texts.push_back(fmt::format("expert {} holds the golden's expert {}", expert, source));
  }
  found.pattern =
      fmt::format("{}{} {}", fmt::join(texts, ", "), sources.size() > kListedExperts ? " .." : "",
                  place_of(run.mesh, wrong_ranks, ranks));
  found.likely = has_local_numbers(sources, held)
                     ? "the number of an expert among those of its rank was taken for its number "
                       "among all experts"
                     : "experts were put in another order, or those of another rank were taken";
  return true;
}

namespace {

// "decoder.layers.1.mlp" of "grad.decoder.layers.1.mlp.experts.linear_fc1.weight".
std::string layer_of(const RecordedPiece& piece) {
  const std::string name = parameter_of(piece.kind, piece.name);
  return name.substr(0, name.find(".experts"));
}

// Unset for a reference of zeros, such as of an expert that got no token.
std::optional<double> distance_of(const double* actual, const double* expected, size_t size) {
  double difference = 0, square = 0;
  for (size_t i = 0; i < size; ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
    square += expected[i] * expected[i];
  }
  if (!(square > 0)) return std::nullopt;
  return std::sqrt(difference / square);
}

}  // namespace

std::string clue_of_experts(const RecordedRun& run, const std::vector<Gradient>& gradients) {
  std::vector<double> others;
  for (const Gradient& one : gradients) {
    if (one.piece->name.find("experts") != one.piece->name.npos) continue;
    const auto distance = distance_of(one.actual.data(), one.expected.data(), one.actual.size());
    if (distance) others.push_back(*distance);
  }
  std::set<int64_t> far, near, ranks, all_ranks;
  std::set<std::string> layers;
  double nearest_far = INFINITY, farthest_near = 0;
  bool are_zero = true;
  for (const Block& block : blocks_of(gradients, nullptr)) {
    const auto distance = distance_of(block.actual(), block.expected(), block.size);
    all_ranks.insert(block.piece().rank);
    if (!distance) continue;
    if (!(*distance >= kFar)) {
      near.insert(block.expert);
      farthest_near = std::max(farthest_near, *distance);
      continue;
    }
    far.insert(block.expert);
    ranks.insert(block.piece().rank);
    layers.insert(layer_of(block.piece()));
    nearest_far = std::min(nearest_far, *distance);
    are_zero = are_zero && is_zero(block.actual(), block.size);
  }
  if (far.empty() || others.empty()) return "";
  const double farthest_other = *std::max_element(others.begin(), others.end());
  const double rest = median(std::move(others));
  if (rest > kContrast * nearest_far || farthest_near > kContrast * nearest_far) return "";
  const size_t shown = std::min(layers.size(), kListedExperts);
  const std::string whose =
      fmt::format("the gradients of {} of {}{}", near.empty() ? "all experts" : listed(far),
                  fmt::join(layers.begin(), std::next(layers.begin(), shown), ", "),
                  shown < layers.size() ? " .." : "");
  const std::string where = place_of(run.mesh, ranks, all_ranks);
  if (farthest_other <= kExpertRounding) {
    return fmt::format(
        "{} are {} {}, and the other gradients are right, so that these experts compute what they "
        "should: their gradients are summed over other ranks than those that hold copies of them, "
        "divided by another number, or lost",
        whose,
        are_zero
            ? "zero"
            : fmt::format("{:.2g} of their size or more away from the reference's", nearest_far),
        where);
  }
  if (are_zero) {
    return fmt::format(
        "{} are zero {}, and the other gradients are within {:.2g} of their size (median): nothing "
        "that these experts compute counts",
        whose, where, rest);
  }
  return fmt::format(
      "{} are {:.2g} of their size or more away from the reference's {}, and the other gradients "
      "{:.2g} (median): these experts compute with other weights, or on the rows of other tokens",
      whose, nearest_far, where, rest);
}

}  // namespace shardproof::sim::recorded
