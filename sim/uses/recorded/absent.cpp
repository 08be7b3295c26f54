// Gradients that some ranks did not record, although they hold the parameter.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/count_of.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr size_t kMostAbsent = 4, kMostRows = 16;
constexpr size_t kFewestOfSum = 4;       // elements that show a sum of two gradients
constexpr double kRoundingOfSum = 1e-9;  // of the larger tensor's largest value, in float64

// Rank and parameter.
using Absent = std::set<std::pair<int64_t, std::string>>;

// The elements whose gradient some rank recorded in the step, by parameter.
std::map<std::string, std::vector<bool>> recorded_elements(const RecordedRun& run, int64_t step) {
  std::map<std::string, std::vector<bool>> held;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != step || piece.kind != ObservationKind::kGradient) continue;
    size_t size = 1;
    for (const int64_t length : piece.global_shape) size *= static_cast<size_t>(length);
    std::vector<bool>& elements = held[parameter_of(piece.kind, piece.name)];
    elements.resize(std::max(elements.size(), size));
    plan_of(piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      std::fill_n(elements.begin() + global, length, true);
    });
  }
  return held;
}

Absent absent_of(const RecordedRun& run, int64_t step) {
  const auto held = recorded_elements(run, step);
  Absent absent;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != 0 || piece.kind != ObservationKind::kParameter) continue;
    const auto gradient = held.find(parameter_of(piece.kind, piece.name));
    if (gradient == held.end()) continue;  // nobody recorded it, which is another finding
    const std::vector<bool>& elements = gradient->second;
    bool lacks = false;
    plan_of(piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i) {
        lacks =
            lacks || static_cast<size_t>(i) >= elements.size() || !elements[static_cast<size_t>(i)];
      }
    });
    if (lacks) absent.emplace(piece.rank, parameter_of(piece.kind, piece.name));
  }
  return absent;
}

std::string listed(const Absent& absent) {
  std::vector<std::string> texts;
  for (const auto& [rank, parameter] : absent) {
    if (texts.size() == kMostAbsent) break;
    const char* const says = texts.empty() ? "recorded no gradient" : "none";
    texts.push_back(fmt::format("rank {} {} of {}", rank, says, parameter));
  }
  const size_t more = absent.size() - texts.size();
  return fmt::format("{}{}", fmt::join(texts, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// The factor k of k (a + b) that all wrong pieces are; 0 for none.
double factor_of_sum(const std::vector<Gradient>& pieces, const GoldenTensor& other) {
  double product = 0, square = 0;
  size_t count = 0;
  const double* values = other.value.data<double>();
  std::vector<std::pair<double, double>> pairs;  // of actual and a + b
  for (const Gradient& one : pieces) {
    if (one.is_right()) continue;
    size_t at = 0;
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i, ++at) {
        pairs.emplace_back(one.actual[at], one.expected[at] + values[i]);
      }
    });
  }
  for (const auto& [actual, sum] : pairs) {
    product += actual * sum;
    square += sum * sum;
    ++count;
  }
  if (count < kFewestOfSum || !(square > 0)) return 0;
  const double factor = product / square;
  const double rounding = kRoundingOfSum * std::max(other.scale, pieces.front().golden->scale);
  const bool fits = std::all_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
    return std::fabs(pair.first - factor * pair.second) <= rounding;
  });
  return fits ? factor : 0;
}

// The absent gradient that was added to the finding's.
std::string packed_with(const RecordedRun& run, const Reference& reference,
                        const judge::Divergence& found, const Absent& absent) {
  const auto of_name = [&](const std::string& wanted) {
    return pieces_beside(run, reference, found.step,
                         [&](const RecordedPiece& piece) { return piece.name == wanted; });
  };
  const std::vector<Gradient> pieces = of_name(found.tensor);
  if (pieces.empty()) return "";
  for (const auto& [rank, parameter] : absent) {
    const std::string name = observed_name(ObservationKind::kGradient, parameter);
    const GoldenTensor* other = reference.record.find(Phase::kStep, found.step, name);
    const GoldenTensor& own = *pieces.front().golden;
    if (name == found.tensor || !other || !other->value.holds<double>() ||
        other->value.sizes() != own.value.sizes()) {
      continue;
    }
    const double factor = factor_of_sum(pieces, *other);
    if (factor == 0) continue;
    const std::vector<Gradient> others = of_name(name);
    const bool both = !others.empty() && factor_of_sum(others, own) != 0;
    const double parts = 1 / factor;
    const bool is_mean = parts > 1.5 && std::fabs(parts - std::round(parts)) < 1e-6;
    const std::string sum =
        fmt::format("({} + {})", parameter_of(found.worst.kind, found.tensor), parameter);
    return fmt::format(
        "{} is what {}: gradients of two parameters met in one call",
        is_mean ? fmt::format("{}/{:.0f}", sum, parts) : fmt::format("{:.6g} x {}", factor, sum),
        both ? "both hold" : "the wrong part holds");
  }
  return "";
}

// Of a parameter that is wrong only on stages that recorded no gradient of it, where others did.
std::string copies_without_gradient(const RecordedRun& run, const judge::Divergence& found) {
  if (run.mesh.size("pp") == 1) return "";
  const std::string parameter = parameter_of(found.worst.kind, found.tensor);
  std::set<int64_t> have;  // coordinates of pp
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != found.step || piece.kind != ObservationKind::kGradient) continue;
    if (parameter_of(piece.kind, piece.name) == parameter) {
      have.insert(run.mesh.coordinate("pp", piece.rank));
    }
  }
  std::set<int64_t> wrong;
  for (const int64_t rank : found.ranks) wrong.insert(run.mesh.coordinate("pp", rank));
  const bool is_wrong_beside =
      std::any_of(wrong.begin(), wrong.end(), [&](int64_t stage) { return have.contains(stage); });
  if (have.empty() || is_wrong_beside || wrong.empty()) return "";
  return fmt::format(
      "pp {} recorded no gradient of it, and pp {} did: the gradient of that copy is lost, or the "
      "stage does not use it and should build its own modules alone",
      fmt::join(wrong, ", "), fmt::join(have, ", "));
}

// Of a parameter of which this run has gradients; the reference has those of others, and keeps its
// value in all steps.
std::string trained_here_alone(const RecordedRun& run, const Reference& reference,
                               const judge::Divergence& found) {
  const std::string parameter = parameter_of(found.worst.kind, found.tensor);
  const auto is_its_gradient = [&](const auto& one) {
    return one.kind == ObservationKind::kGradient && parameter_of(one.kind, one.name) == parameter;
  };
  if (!std::ranges::any_of(run.pieces, is_its_gradient)) return "";
  const GoldenTensor* first = nullptr;
  int64_t steps = 0, gradients = 0;
  for (const GoldenTensor& tensor : reference.record.tensors()) {
    if (is_its_gradient(tensor)) return "";
    gradients += tensor.kind == ObservationKind::kGradient;
    if (tensor.kind != ObservationKind::kParameter || tensor.name != found.tensor) continue;
    if (first == nullptr) first = &tensor;
    if (distance_between(first->value, tensor.value).largest != 0) return "";
    ++steps;
  }
  if (gradients == 0 || steps < 2) return "";
  return "this run trains it, and the reference has no gradient of it in any step: it is frozen "
         "there";
}

// Whether the rank of the finding had the same values a step before.
bool keeps_value(const RecordedRun& run, const judge::Divergence& found) {
  std::optional<std::vector<double>> now, then;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.rank != found.worst.rank || piece.name != found.tensor) continue;
    if (!is_floating(piece.values.dtype())) return false;
    if (piece.step == found.step) now = values_as<double>(piece.values);
    if (piece.step == found.step - 1) then = values_as<double>(piece.values);
  }
  return now && then && *now == *then;
}

// Of a parameter that is wrong only on ranks that recorded no state of it, where others did.
std::string copies_without_state(const RecordedRun& run, const judge::Divergence& found) {
  const std::string parameter = parameter_of(found.worst.kind, found.tensor);
  std::set<int64_t> have;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != found.step || !is_optimizer_state(piece.kind)) continue;
    if (parameter_of(piece.kind, piece.name) == parameter) have.insert(piece.rank);
  }
  const bool is_wrong_beside = std::any_of(found.ranks.begin(), found.ranks.end(),
                                           [&](int64_t rank) { return have.contains(rank); });
  const bool is_stale = keeps_value(run, found);
  if (have.empty() || is_wrong_beside || found.ranks.empty() || !is_stale) return "";
  return fmt::format(
      "{} recorded no state of the optimizer for it, and {} did: the optimizer there "
      "does not hold it, and nothing gives it the new values before the step ends; broadcast them "
      "within step(), or record without an optimizer and call rec.stepped() after the broadcast",
      ranks_text(found.ranks), ranks_text(have));
}

}  // namespace

std::string ranks_without_state(const RecordedRun& run, const judge::Divergence& found) {
  if (!is_optimizer_state(found.worst.kind)) return "";
  const std::string parameter = parameter_of(found.worst.kind, found.tensor);
  std::set<int64_t> have, without;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step == found.step && piece.name == found.tensor) have.insert(piece.rank);
  }
  for (const RecordedPiece& piece : run.pieces) {
    const bool holds = piece.step == found.step && piece.kind == ObservationKind::kParameter &&
                       parameter_of(piece.kind, piece.name) == parameter &&
                       piece.values.numel() > 0;
    if (holds && !have.contains(piece.rank)) without.insert(piece.rank);
  }
  if (have.empty() || without.empty()) return "";
  return fmt::format(
      "{} recorded a part of the parameter and no such state of it, {} did: the optimizer there "
      "does not hold it, or its states were lost",
      ranks_text(without), ranks_text(have));
}

std::map<int64_t, int64_t> last_steps(const RecordedRun& run) {
  std::map<int64_t, int64_t> last;
  for (const RecordedPiece& piece : run.pieces) {
    if (is_stepped(piece.kind)) last[piece.rank] = std::max(last[piece.rank], piece.step);
  }
  return last;
}

std::string ranks_without_step(const RecordedRun& run, int64_t step,
                               const std::vector<int64_t>& wrong) {
  std::map<int64_t, int64_t> last = last_steps(run);
  std::vector<int64_t> without, more;
  for (const auto& [rank, made] : last) {
    if (made < step) without.push_back(rank);
    if (made > run.steps) more.push_back(rank);
  }
  if (wrong.empty() && step > run.steps && !more.empty() && more.size() < last.size()) {
    return fmt::format(
        "{} recorded {} steps, and the run has {}: the optimizer steps more often "
        "there than on other ranks",
        ranks_text(more), last[more.front()], run.steps);
  }
  if (without.empty() || without.size() == last.size()) return "";
  const auto is_wrong = [&](int64_t rank) { return std::ranges::count(wrong, rank) > 0; };
  if (!wrong.empty() && std::ranges::none_of(without, is_wrong)) return "";
  return fmt::format("{} recorded {} of {} steps: the optimizer did not step there",
                     ranks_text(without), last[without.front()], run.steps);
}

std::string absent_gradients(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found) {
  if (found.worst.kind == ObservationKind::kParameter) {
    const std::string alone = trained_here_alone(run, reference, found);
    if (!alone.empty()) return alone;
    const std::string gradient = copies_without_gradient(run, found);
    return gradient.empty() ? copies_without_state(run, found) : gradient;
  }
  if (found.worst.kind != ObservationKind::kGradient) return "";
  const Absent absent = absent_of(run, found.step);
  if (absent.empty()) return "";
  const std::string packed = packed_with(run, reference, found, absent);
  return listed(absent) + (packed.empty() ? "" : "; " + packed);
}

std::string rows_of_nobody(const RecordedRun& run, const judge::Divergence& found) {
  std::vector<std::set<int64_t>> ranks;  // of each row
  int64_t of_row = 1;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.name != found.tensor || piece.step != found.step || piece.global_shape.empty())
      continue;
    const auto rows = static_cast<size_t>(piece.global_shape.front());
    if (ranks.empty()) ranks.resize(rows);
    if (ranks.size() != rows) return "";
    of_row = 1;
    for (size_t d = 1; d < piece.global_shape.size(); ++d) of_row *= piece.global_shape[d];
    if (of_row == 0) return "";
    plan_of(piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i) {
        ranks[static_cast<size_t>(i / of_row)].insert(piece.rank);
      }
    });
  }
  std::vector<size_t> rows;
  std::set<int64_t> beside;
  for (size_t row = 0; row < ranks.size(); ++row) {
    if (!ranks[row].empty()) continue;
    rows.push_back(row);
    if (row > 0) beside.insert(ranks[row - 1].begin(), ranks[row - 1].end());
  }
  if (rows.empty() || rows.size() == ranks.size() || rows.size() > kMostRows) return "";
  std::string by;
  if (!beside.empty()) by = "; " + ranks_text(beside) + " recorded those before";
  return fmt::format(
      "no rank recorded row{} {} of its {}{}: a microbatch was lost there, or not recorded",
      rows.size() > 1 ? "s" : "", fmt::join(rows, ", "), ranks.size(), by);
}

}  // namespace shardproof::sim::recorded
