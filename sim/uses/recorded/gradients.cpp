#include "sim/uses/recorded/gradients.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "base/count_of.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {

namespace {

constexpr double kRounding = 1e-9;  // of the tensor's largest value, in float64

}  // namespace

std::vector<Gradient> pieces_beside(const RecordedRun& run, const Reference& reference,
                                    int64_t step,
                                    const std::function<bool(const RecordedPiece&)>& is_wanted) {
  std::vector<Gradient> found;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != step || !is_wanted(piece)) continue;
    const GoldenTensor* golden = reference.record.find(piece.phase, step, piece.name);
    if (!golden || golden->value.sizes() != piece.global_shape || !piece.partial_axes.empty() ||
        !piece.values.holds<double>() || !golden->value.holds<double>()) {
      continue;
    }
    Gradient one{&piece, golden, {}, {}};
    const double* actual = piece.values.data<double>();
    const double* expected = golden->value.data<double>();
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      one.actual.insert(one.actual.end(), actual + local, actual + local + length);
      one.expected.insert(one.expected.end(), expected + global, expected + global + length);
    });
    found.push_back(std::move(one));
  }
  return found;
}

std::vector<Gradient> gradients_of(const RecordedRun& run, const Reference& reference,
                                   int64_t step) {
  return pieces_beside(run, reference, step, [](const RecordedPiece& piece) {
    return piece.kind == ObservationKind::kGradient;
  });
}

bool Gradient::is_right(const std::vector<double>& values) const {
  const double rounding = kRounding * golden->scale;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!(std::abs(values[i] - expected[i]) <= rounding)) return false;
  }
  return true;
}

namespace {

constexpr size_t kListed = 4;
constexpr size_t kFewestLetters = 3;

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

bool is_in_all(const std::string& part, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) != name.npos; });
}

bool is_in_none(const std::string& part, const std::vector<std::string>& names) {
  return std::all_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.find(part) == name.npos; });
}

// The longest run of letters that all wrong names have and no right name has; "" without one of
// kFewestLetters.
std::string common_part(const std::vector<std::string>& wrong,
                        const std::vector<std::string>& right) {
  const std::string& name = wrong.front();
  std::string longest;
  for (size_t begin = 0; begin < name.size(); ++begin) {
    for (size_t end = begin; end < name.size() && is_letter(name[end]); ++end) {
      const size_t size = end + 1 - begin;
      if (size < kFewestLetters || size <= longest.size()) continue;
      const std::string part = name.substr(begin, size);
      if (is_in_all(part, wrong) && is_in_none(part, right)) longest = part;
    }
  }
  return longest;
}

}  // namespace

std::string other_wrong_gradients(const std::vector<judge::RankReport>& reports, int64_t step) {
  std::map<std::string, bool> is_wrong;
  for (const judge::RankReport& report : reports) {
    for (const judge::ResultRow& row : report.rows) {
      if (row.step != step || row.kind != ObservationKind::kGradient) continue;
      bool& wrong = is_wrong[parameter_of(row.kind, row.name)];
      wrong = wrong || row.is_wrong();
    }
  }
  std::vector<std::string> wrong, right;
  for (const auto& [name, bad] : is_wrong) (bad ? wrong : right).push_back(name);
  if (wrong.size() < 2) return "";
  const std::string count =
      fmt::format("{} of {} gradients of step {} are wrong", wrong.size(), is_wrong.size(), step);
  if (right.empty()) return count;
  const std::string part = common_part(wrong, right);
  if (!part.empty()) {
    return fmt::format("{}: all with '{}' in their name, and no others", count, part);
  }
  const size_t more = wrong.size() > kListed ? wrong.size() - kListed : 0;
  wrong.resize(wrong.size() - more);
  return fmt::format("{}: {}{}", count, fmt::join(wrong, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

bool has_gradients(const RecordedRun& run) {
  return std::ranges::any_of(run.pieces, [](const RecordedPiece& piece) {
    return piece.kind == ObservationKind::kGradient;
  });
}

bool has_moved(const RecordedRun& run) {
  std::map<std::tuple<int64_t, std::string, Place>, const RecordedPiece*> start;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.kind != ObservationKind::kParameter) continue;
    const auto [at, is_first] =
        start.emplace(std::tuple(piece.rank, piece.name, piece.place), &piece);
    if (!is_first && values_as<double>(at->second->values) != values_as<double>(piece.values))
      return true;
  }
  return false;
}

std::string uncut_batch(const RecordedRun& run, const RecordedRun& golden) {
  static const std::set<std::string> kCutting = {"dp",  "dp_replicate", "dp_shard",
                                                 "ddp", "fsdp",         "hsdp"};
  if (run.is_file || golden.batch_rows == 0 || run.batch_parts > 1) return "";
  const bool cuts = std::ranges::any_of(run.mesh.axes(), [](const MeshAxis& axis) {
    return axis.size > 1 && kCutting.contains(axis.name);
  });
  if (!cuts) return "";
  if (run.batch_parts == 1) {
    return fmt::format(
        "shardproof.batch gave every rank all {} rows, although the mesh has an axis that cuts "
        "batches: ranks that all compute the whole batch match as well; name that axis in axes=",
        run.batch_rows);
  }
  return fmt::format(
      "the golden took {} rows from shardproof.batch, which this run never called: ranks "
      "that all compute the whole batch match as well; call it in both",
      golden.batch_rows);
}

std::string without_gradients(const RecordedRun& run) {
  std::set<int64_t> with, without;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.kind == ObservationKind::kGradient) with.insert(piece.rank);
  }
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.kind == ObservationKind::kParameter && !with.contains(piece.rank))
      without.insert(piece.rank);
  }
  if (without.empty()) return "";
  if (with.empty()) {
    const bool trains = has_moved(run) || !run.settings.empty() || !run.groups.empty();
    if (run.is_file || run.steps == 0 || !trains) return "";
    return "no gradient was recorded, so that what an optimizer hides is not seen, as Adam hides a "
           "wrong scale of all gradients; call rec.gradients() before each step";
  }
  return fmt::format(
      "{} recorded parameters and no gradient, so that nothing says whether {} got the others'",
      ranks_text(without), without.size() > 1 ? "they" : "it");
}

}  // namespace shardproof::sim::recorded
