#include "sim/uses/recorded/matrix_step.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/digest.h"
#include "base/enum_names.h"
#include "base/precision.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/layers.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

// Of the update. A wrong one of 0.4 is more, and a right one in bfloat16 of 0.1 is within it.
constexpr double kLimit = 0.2;
constexpr double kTimesNarrow = 3;        // what roundings of bfloat16 make, by another computation
constexpr double kWidestLimit = 0.5;      // of a larger one nothing is said
constexpr double kCloser = 4;             // by how much another way must explain an update better
constexpr double kExact = 1e-6;           // of an update that has no roundings of bfloat16
constexpr double kExactFactor = 1e-5;     // of the length of such a step
constexpr double kMostOfRounding = 0.05;  // of the parameter, in its update
constexpr double kOffFactor = 0.1;        // of the length of a step
constexpr double kMostWork = 2e9;         // multiplications, which take seconds
constexpr size_t kFewest = 16;            // elements that tell
constexpr double kOffMomentum = 0.05;     // of the momentum
constexpr double kGoldenMomentum = 1e-3;

// A piece's elements of a whole tensor.
Values part_of(const RecordedPiece& piece, const Values& whole) {
  Values part(static_cast<size_t>(piece.values.numel()));
  plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
    std::copy_n(whole.begin() + global, length, part.begin() + local);
  });
  return part;
}

Values golden_values(const Reference& reference, int64_t step, const std::string& name) {
  const GoldenTensor* tensor = reference.record.find(Phase::kStep, step, name);
  if (!tensor || !tensor->value.holds<double>()) return {};
  const double* values = tensor->value.data<double>();
  return {values, values + tensor->value.numel()};
}

double golden_clip(const Reference& reference, int64_t step) {
  const Values clip = golden_values(reference, step, "clip_coefficient");
  return clip.size() == 1 ? clip.front() : 1;
}

double share_of_gradient(const MatrixRule& rule) { return rule.average ? 1 - rule.momentum : 1; }

// What is made orthogonal, of the state after the step. The gradient is as the optimizer got it.
Values direction_of(const Values& state, const Values& gradient, double clip,
                    const MatrixRule& rule, bool nesterov) {
  if (!nesterov) return state;
  Values made = state;
  for (size_t i = 0; i < made.size(); ++i)
    made[i] = rule.momentum * made[i] + share_of_gradient(rule) * clip * gradient[i];
  return made;
}

std::string state_name(const RecordedPiece& piece, const MatrixRule& rule) {
  return rule.state + "." + parameter_of(piece.kind, piece.name);
}

std::string gradient_name(const RecordedPiece& piece) {
  return observed_name(ObservationKind::kGradient, parameter_of(piece.kind, piece.name));
}

double rounding_of(const RecordedPiece& piece) {
  const auto precision = find_enum<Precision>(dtype_name(piece.values.dtype()));
  return precision ? judge::eps_of_precision(*precision) : 1;
}

}  // namespace

MatrixSteps::MatrixSteps(const RecordedRun& run, const Reference& reference)
    : run_(run), reference_(reference) {
  if (reference.matrices.empty()) return;
  for (const RecordedPiece& piece : run.pieces) pieces_[{piece.step, piece.name}].push_back(&piece);
}

const MatrixVerdict& MatrixSteps::of(const RecordedPiece& piece) {
  const auto [at, added] = verdicts_.try_emplace(&piece);
  if (added) at->second = judge(piece);
  return at->second;
}

MatrixVerdict MatrixSteps::judge(const RecordedPiece& piece) {
  const bool is_matrix = piece.global_shape.size() == 2 && piece.step > 0;
  if (!is_matrix || !is_floating(piece.values.dtype()) || piece.values.numel() == 0) return {};
  const std::string parameter = parameter_of(piece.kind, piece.name);
  auto found = reference_.matrices.find(parameter);
  if (found == reference_.matrices.end())
    found = reference_.matrices.find(name_without_layer(parameter));
  if (found == reference_.matrices.end()) return {};
  const MatrixRule& rule = found->second;
  if (piece.kind == ObservationKind::kParameter) return judge_update(piece, rule);
  return piece.name == state_name(piece, rule) ? judge_momentum(piece, rule) : MatrixVerdict{};
}

MatrixVerdict MatrixSteps::judge_update(const RecordedPiece& piece, const MatrixRule& rule) {
  const RecordedPiece* before = find(piece, piece.step - 1, piece.name);
  if (!before || static_cast<size_t>(piece.values.numel()) < kFewest) return {};
  const Update& update = update_of(piece, rule);
  if (!update.is_known) return {};
  const Values then = values_as<double>(before->values);
  Values moved = values_as<double>(piece.values);
  const double rounding = rounding_of(piece) * length_of(moved);
  for (size_t i = 0; i < moved.size(); ++i) moved[i] -= then[i];
  const Values direction = part_of(piece, update.whole.values);
  const Fit fit = fit_of(moved, direction, then);
  const double size = std::fabs(update.factor) * length_of(direction);
  if (!(rounding <= kMostOfRounding * size)) return {};
  const double limit = std::max(kLimit, kTimesNarrow * update.narrow);
  if (fit.unlike > kExact) {
    const std::string cause = cause_of(piece, rule, update, moved, then, fit.unlike);
    if (!cause.empty() || (fit.unlike > limit && limit <= kWidestLimit)) {
      return {MatrixVerdict::Kind::kWrong,
              "its update is not that of the rank's own momentum, made orthogonal: " +
                  (cause.empty() ? fmt::format("{:.2g} of it differs", fit.unlike) : cause)};
    }
  }
  if (fit.unlike > limit) return {};
  const double times = fit.factor / update.factor;
  const bool is_exact = fit.unlike <= kExact && rounding <= kExact * size;
  // Where the matrix and its update are nearly parallel, roundings move both numbers, but not what
  // they make together.
  const double factor = fit.factor - update.factor, decay = fit.decay - update.decay;
  double apart = 0;
  for (size_t i = 0; i < moved.size(); ++i) {
    const double one = factor * direction[i] + decay * then[i];
    apart += one * one;
  }
  const bool is_off = !(std::sqrt(apart) <= (is_exact ? kExactFactor : kOffFactor) * size);
  const double by_factor = std::fabs(factor) * length_of(direction);
  const bool is_decay = std::fabs(decay) * length_of(then) > by_factor;
  if (is_off && !is_decay) {
    return {MatrixVerdict::Kind::kWrong,
            fmt::format("moved by {:.{}g} x the golden's update of this step: the learning rate, "
                        "or another setting of the optimizer, is wrong",
                        times, is_exact ? 4 : 2)};
  }
  if (is_off) {
    return {MatrixVerdict::Kind::kWrong,
            fmt::format("its update adds {:.3g} x the matrix before it, and the golden's {:.3g} x: "
                        "another weight decay",
                        fit.decay, update.decay)};
  }
  return {MatrixVerdict::Kind::kRight,
          fmt::format("its update is the rank's own momentum, made orthogonal, but for {:.2g} of "
                      "it; roundings of bfloat16 within the optimizer make {:.2g}",
                      fit.unlike, update.narrow)};
}

const MatrixSteps::Update& MatrixSteps::update_of(const RecordedPiece& piece,
                                                  const MatrixRule& rule) {
  static const Update kNone;
  const int64_t rows = piece.global_shape[0], columns = piece.global_shape[1];
  if (!fits(rule.blocks, rows) || work_of(rows, columns, rule) > kMostWork) return kNone;
  const std::string state_is = state_name(piece, rule), gradient_is = gradient_name(piece);
  const Values state = gathered(piece.rank, piece.step, state_is);
  const Values gradient =
      rule.nesterov ? gathered(piece.rank, piece.step, gradient_is) : Values(state.size());
  if (state.empty() || gradient.size() != state.size()) return kNone;
  Matrix momentum{
      rows, columns,
      direction_of(state, gradient, clip_of(piece.rank, piece.step), rule, rule.nesterov)};
  const size_t bytes = momentum.values.size() * sizeof(double);
  const auto [at, added] =
      updates_.try_emplace({piece.step, piece.name, digest_of(momentum.values.data(), bytes)});
  Update& update = at->second;
  if (!added) return update;
  const Values right_state = golden_values(reference_, piece.step, state_is);
  const Values right_gradient = rule.nesterov ? golden_values(reference_, piece.step, gradient_is)
                                              : Values(right_state.size());
  const Values before = golden_values(reference_, piece.step - 1, piece.name);
  Values moved = golden_values(reference_, piece.step, piece.name);
  const bool is_there = right_state.size() == state.size() && before.size() == state.size() &&
                        right_gradient.size() == state.size() && moved.size() == state.size();
  if (!is_there || !(length_of(momentum.values) > 0)) return update;
  for (size_t i = 0; i < moved.size(); ++i) moved[i] -= before[i];
  const Matrix right =
      orthogonal_blocks({rows, columns,
                         direction_of(right_state, right_gradient,
                                      golden_clip(reference_, piece.step), rule, rule.nesterov)},
                        rule, false);
  const Fit of_golden = fit_of(moved, right.values, before);
  update.whole = orthogonal_blocks(momentum, rule, false);
  const Matrix narrow = orthogonal_blocks(momentum, rule, true);
  update.narrow = distance_of(narrow.values, update.whole.values) / length_of(update.whole.values);
  update.momentum = std::move(momentum);
  update.factor = of_golden.factor;
  update.decay = of_golden.decay;
  update.is_known =
      of_golden.factor != 0 && of_golden.unlike <= std::max(kLimit, kTimesNarrow * update.narrow);
  return update;
}

// Another way in which the update is made, if it explains the update far better; "": none.
std::string MatrixSteps::cause_of(const RecordedPiece& piece, const MatrixRule& rule,
                                  const Update& update, const Values& moved, const Values& then,
                                  double unlike) const {
  std::string cause;
  double best = unlike / kCloser;
  const auto consider = [&](const Values& direction, const std::string& text) {
    if (direction.size() != moved.size()) return;
    const Fit fit = fit_of(moved, direction, then);
    if (!(fit.unlike < best)) return;
    best = fit.unlike;
    cause = text;
  };
  MatrixRule whole = rule;
  whole.blocks.clear();
  const std::string belongs =
      rule.blocks.empty()
          ? "the whole matrix belongs"
          : fmt::format("blocks of {} rows belong, each for itself", fmt::join(rule.blocks, ", "));
  const std::vector<Matrix> parts = own_parts(piece, update.momentum);
  if (!parts.empty()) {
    const Matrix& alone = parts.front();
    consider(orthogonal(alone, whole, false).values,
             "the rank makes its own part orthogonal alone, where " + belongs);
    if (!rule.blocks.empty()) {
      // Blocks of the whole that are taken for those of the part.
      MatrixRule local = rule;
      const int64_t cut = update.whole.rows / alone.rows;
      for (int64_t& rows : local.blocks) rows /= std::max<int64_t>(cut, 1);
      if (alone.rows < update.whole.rows && fits(local.blocks, alone.rows)) {
        consider(orthogonal_blocks(alone, local, false).values,
                 fmt::format("the rank makes its own part orthogonal alone, cut into blocks of {} "
                             "rows, where {}",
                             fmt::join(local.blocks, ", "), belongs));
      }
    }
  }
  if (parts.size() > 1) {
    // All that the rank holds, one piece above the other.
    const Matrix done = orthogonal(parts.back(), whole, false);
    int64_t first = 0;
    for (const RecordedPiece* other : pieces_.at({piece.step, piece.name})) {
      if (other == &piece) break;
      if (other->rank == piece.rank) first += other->values.numel();
    }
    consider(Values(done.values.begin() + first, done.values.begin() + first + std::ssize(moved)),
             fmt::format("the rank makes its own parts of all blocks orthogonal together, where {}",
                         belongs));
  }
  if (!rule.blocks.empty()) {
    consider(part_of(piece, orthogonal(update.momentum, whole, false).values),
             "the whole matrix is made orthogonal at once, where " + belongs);
  }
  for (const int64_t count : {2, 3}) {
    MatrixRule equal = rule;
    if (update.whole.rows % count != 0) continue;
    equal.blocks.assign(static_cast<size_t>(count), update.whole.rows / count);
    if (equal.blocks == rule.blocks) continue;
    consider(
        part_of(piece, orthogonal_blocks(update.momentum, equal, false).values),
        fmt::format("it is made orthogonal in {} equal blocks of rows, where {}", count, belongs));
  }
  consider(part_of(piece, update.momentum.values), "it is not made orthogonal");
  const Values state = gathered(piece.rank, piece.step, state_name(piece, rule));
  const Values gradient = gathered(piece.rank, piece.step, gradient_name(piece));
  if (state.size() == update.momentum.values.size() && gradient.size() == state.size()) {
    Matrix other{
        update.whole.rows, update.whole.columns,
        direction_of(state, gradient, clip_of(piece.rank, piece.step), rule, !rule.nesterov)};
    consider(part_of(piece, orthogonal_blocks(other, rule, false).values),
             rule.nesterov ? "it is made without Nesterov's momentum"
                           : "it is made with Nesterov's momentum");
  }
  return cause;
}

// The piece's part of the momentum; then, where the rank has several pieces of the matrix, all of
// them one above the other. Empty where a piece is not a matrix, or is the whole one.
std::vector<Matrix> MatrixSteps::own_parts(const RecordedPiece& piece,
                                           const Matrix& momentum) const {
  if (piece.shape.size() != 2 || piece.shape == piece.global_shape) return {};
  std::vector<Matrix> parts = {{piece.shape[0], piece.shape[1], part_of(piece, momentum.values)}};
  Matrix all{0, piece.shape[1], {}};
  for (const RecordedPiece* other : pieces_.at({piece.step, piece.name})) {
    if (other->rank != piece.rank) continue;
    if (other->global_shape != piece.global_shape) return parts;
    if (other->shape.size() != 2 || other->shape[1] != piece.shape[1]) return parts;
    const Values values = part_of(*other, momentum.values);
    all.rows += other->shape[0];
    all.values.insert(all.values.end(), values.begin(), values.end());
  }
  if (all.rows > piece.shape[0]) parts.push_back(std::move(all));
  return parts;
}

MatrixVerdict MatrixSteps::judge_momentum(const RecordedPiece& piece,
                                          const MatrixRule& rule) const {
  const std::string gradient_is = gradient_name(piece);
  const Values gradients = gathered(piece.rank, piece.step, gradient_is);
  const RecordedPiece* before = find(piece, piece.step - 1, piece.name);
  const bool is_first = piece.step == 1 && run_.from_step == 0;
  const Values right = golden_values(reference_, piece.step, piece.name);
  const Values right_gradient = golden_values(reference_, piece.step, gradient_is);
  Values right_before = golden_values(reference_, piece.step - 1, piece.name);
  if (is_first) right_before.assign(right.size(), 0);
  const bool is_there = !gradients.empty() && (before || is_first) && !right.empty() &&
                        right_gradient.size() == right.size() &&
                        right_before.size() == right.size() && gradients.size() == right.size();
  const Values now = values_as<double>(piece.values);
  if (!is_there || now.size() < kFewest) return {};
  const auto made = [&](const Values& then, const Values& gradient, double clip) {
    Values momentum(then.size());
    for (size_t i = 0; i < then.size(); ++i)
      momentum[i] = rule.momentum * then[i] + share_of_gradient(rule) * clip * gradient[i];
    return momentum;
  };
  const Values golden_made =
      made(right_before, right_gradient, golden_clip(reference_, piece.step));
  if (!(distance_of(golden_made, right) <= kGoldenMomentum * length_of(right))) return {};
  const Values then = before ? values_as<double>(before->values) : Values(now.size());
  const Values gradient = part_of(piece, gradients);
  const double clip = clip_of(piece.rank, piece.step);
  const double apart = distance_of(made(then, gradient, clip), now) / length_of(now);
  if (apart <= kOffMomentum) return {};
  const double share = share_of_gradient(rule);
  const bool is_lost = distance_of(made(Values(now.size()), gradient, clip), now) <=
                       kGoldenMomentum * length_of(now);
  const std::string rest =
      is_lost ? fmt::format(
                    "it is {:.3g} x the gradient of step {} alone, as after a first step: "
                    "the momentum before was lost",
                    share * clip, piece.step)
              : fmt::format(
                    "it is not {:.3g} x the rank's own momentum before and {:.3g} x its gradient",
                    rule.momentum, share * clip);
  return {MatrixVerdict::Kind::kWrong, rest};
}

Values MatrixSteps::gathered(int64_t rank, int64_t step, const std::string& name) const {
  const auto found = pieces_.find({step, name});
  if (found == pieces_.end()) return {};
  Values whole;
  std::vector<bool> held;
  const auto paste = [&](const RecordedPiece& piece) {
    const Values values = values_as<double>(piece.values);
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      std::copy_n(values.begin() + local, length, whole.begin() + global);
      std::fill_n(held.begin() + global, length, true);
    });
  };
  const std::vector<int64_t>& shape = found->second.front()->global_shape;
  size_t size = 1;
  for (const int64_t length : shape) size *= static_cast<size_t>(length);
  whole.assign(size, 0);
  held.assign(size, false);
  for (const bool is_own : {false, true}) {
    for (const RecordedPiece* piece : found->second) {
      if (!piece->partial_axes.empty() || piece->global_shape != shape) return {};
      if (is_floating(piece->values.dtype()) && (piece->rank == rank) == is_own) paste(*piece);
    }
  }
  const bool lacks = std::find(held.begin(), held.end(), false) != held.end();
  return lacks ? Values{} : whole;
}

const RecordedPiece* MatrixSteps::find(const RecordedPiece& like, int64_t step,
                                       const std::string& name) const {
  const auto found = pieces_.find({step, name});
  if (found == pieces_.end()) return nullptr;
  for (const RecordedPiece* one : found->second) {
    const bool is_same = one->rank == like.rank && one->place == like.place &&
                         one->shape == like.shape && is_floating(one->values.dtype());
    if (is_same) return one;
  }
  return nullptr;
}

double MatrixSteps::clip_of(int64_t rank, int64_t step) const {
  const auto found = pieces_.find({step, "clip_coefficient"});
  if (found == pieces_.end()) return 1;
  for (const RecordedPiece* one : found->second) {
    if (one->rank == rank) return values_as<double>(one->values).front();
  }
  return 1;
}

}  // namespace shardproof::sim::recorded
