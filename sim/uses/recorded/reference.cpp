#include "sim/uses/recorded/reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "base/error.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/layers.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

using Pieces = std::vector<const RecordedPiece*>;

size_t elements_of(const std::vector<int64_t>& shape) {
  size_t size = 1;
  for (const int64_t length : shape) size *= static_cast<size_t>(length);
  return size;
}

struct Tensor {
  Pieces pieces;
  size_t first = 0;  // position of its first piece in the run
};

// The tensors by the order of the computation.
std::vector<Tensor> tensors_of(const RecordedRun& run) {
  std::map<std::string, Tensor> by_key;
  for (size_t i = 0; i < run.pieces.size(); ++i) {
    const RecordedPiece& piece = run.pieces[i];
    Tensor& tensor = by_key[record_key(piece.phase, piece.step, piece.name)];
    if (tensor.pieces.empty()) tensor.first = i;
    tensor.pieces.push_back(&piece);
  }
  std::vector<Tensor> tensors;
  for (auto& [key, tensor] : by_key) tensors.push_back(std::move(tensor));
  const auto place = [](const Tensor& tensor) {
    const RecordedPiece& first = *tensor.pieces.front();
    const int64_t order = first.order < 0 ? std::numeric_limits<int64_t>::max() : first.order;
    const int64_t place = place_in_phase(first.phase, first.kind, first.global_shape.empty());
    return std::tuple(judge::golden_position(first.step, first.phase, place), order, tensor.first);
  };
  std::ranges::sort(tensors, [&](const Tensor& a, const Tensor& b) { return place(a) < place(b); });
  return tensors;
}

[[noreturn]] void bad_reference(const RecordedRun& run, const RecordedPiece& piece,
                                const std::string& what, const std::string& fix) {
  throw_bad_input(fmt::format("{}: {} of step {} {}", run.folder, piece.name, piece.step, what),
                  fix);
}

// The addends of one group of peers, and each value once: of several groups that hold addends of
// the same elements the one with the lowest rank counts.
bool is_counted(const RecordedRun& run, const Pieces& pieces, const RecordedPiece& piece) {
  const auto group = [&](const RecordedPiece& one) {
    return run.mesh.peers_along(one.partial_axes, one.rank).front();
  };
  for (const RecordedPiece* other : pieces) {
    const bool same = other->place == piece.place && other->shape == piece.shape &&
                      other->microbatch == piece.microbatch;
    if (same && group(*other) < group(piece)) return false;
  }
  return true;
}

// Writes pieces into the whole tensor, and refuses copies that differ.
template <class Value>
class Assembly {
 public:
  Assembly(const RecordedRun& run, const RecordedPiece& first)
      : run_(run), first_(first), whole_(elements_of(first.global_shape)), held_(whole_.size()) {}

  void add(const RecordedPiece& piece) {
    if (piece.global_shape != first_.global_shape) {
      bad_reference(run_, piece,
                    fmt::format("is [{}] on rank {} and [{}] on rank {}",
                                fmt::join(first_.global_shape, ", "), first_.rank,
                                fmt::join(piece.global_shape, ", "), piece.rank),
                    "record both ranks with the same model");
    }
    if (piece.values.holds<Value>()) return paste(piece, piece.values.data<Value>());
    paste(piece, values_as<Value>(piece.values).data());
  }

  // Unset when no rank recorded some of its elements.
  std::optional<TensorView> whole() {
    const bool lacks = std::ranges::find(held_, 0) != held_.end();
    if (lacks) return std::nullopt;
    return TensorView::of(std::move(whole_), first_.global_shape);
  }

 private:
  void paste(const RecordedPiece& piece, const Value* from) {
    const bool addend = !piece.partial_axes.empty();
    const double share = piece.is_mean ? mean_share(run_.mesh, piece) : 1;
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        const auto at = static_cast<size_t>(global + i);
        Value& here = whole_[at];
        if (addend) {
          here += static_cast<Value>(share * static_cast<double>(from[local + i]));
        } else if (held_[at] != 0 && !same(here, from[local + i])) {
          bad_reference(run_, piece, "has unequal copies on its ranks",
                        "compare this run with one that has one rank first");
        } else {
          here = from[local + i];
        }
        held_[at] = 1;
      }
    });
  }

  static bool same(Value a, Value b) { return a == b || (a != a && b != b); }

  const RecordedRun& run_;
  const RecordedPiece& first_;
  std::vector<Value> whole_;
  std::vector<char> held_;
};

template <class Value>
std::optional<TensorView> assembled_as(const RecordedRun& run, const Pieces& pieces) {
  Assembly<Value> assembly(run, *pieces.front());
  for (const RecordedPiece* piece : pieces) {
    if (piece->partial_axes.empty() || is_counted(run, pieces, *piece)) assembly.add(*piece);
  }
  return assembly.whole();
}

// Whether several microbatches gave values of one part, of which none is that of the whole batch.
bool are_of_microbatches(const Pieces& pieces) {
  std::map<std::pair<int64_t, Place>, int64_t> microbatches;
  for (const RecordedPiece* piece : pieces) {
    if (!piece->partial_axes.empty()) continue;
    const auto [at, added] =
        microbatches.emplace(std::pair(piece->rank, piece->place), piece->microbatch);
    if (!added && at->second != piece->microbatch) return true;
  }
  return false;
}

// Unset when the pieces do not make the tensor.
std::optional<TensorView> assembled(const RecordedRun& run, const Pieces& pieces) {
  const RecordedPiece& first = *pieces.front();
  int64_t held = 0;
  for (const RecordedPiece* piece : pieces) held += piece->values.numel();
  const bool lacks = static_cast<size_t>(held) < elements_of(first.global_shape);
  if (lacks || are_of_microbatches(pieces)) return std::nullopt;
  return is_floating(first.values.dtype()) ? assembled_as<double>(run, pieces)
                                           : assembled_as<int64_t>(run, pieces);
}

GoldenTensor golden_tensor(ObservationKind kind, const std::string& name, Phase phase, int64_t step,
                           TensorView value) {
  GoldenTensor tensor;
  tensor.kind = kind;
  tensor.name = name;
  tensor.phase = phase;
  tensor.step = step;
  tensor.value = std::move(value);
  return tensor;
}

// The learning rate of each step, where the script did not record it as a scalar.
void add_rates(const RecordedRun& run, std::vector<GoldenTensor>& tensors) {
  std::set<int64_t> recorded;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.name == "lr") recorded.insert(piece.step);
  }
  for (size_t i = 0; i < run.lr.size(); ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    if (recorded.contains(step)) continue;
    tensors.push_back(golden_tensor(ObservationKind::kRate, "lr", Phase::kStep, step,
                                    TensorView::of(std::vector{run.lr[i]}, {})));
  }
}

// The tensors of a repeat, by record_key.
std::map<std::string, TensorView> tensors_of_repeat(const RecordedRun& repeat) {
  std::map<std::string, TensorView> wholes;
  for (const Tensor& tensor : tensors_of(repeat)) {
    const RecordedPiece& first = *tensor.pieces.front();
    std::optional<TensorView> whole = assembled(repeat, tensor.pieces);
    if (whole) wholes.emplace(record_key(first.phase, first.step, first.name), std::move(*whole));
  }
  return wholes;
}

// Rounding to its dtype is all that a repeat's start may differ by.
void check_start(const RecordedRun& repeat, const GoldenTensor& tensor, const TensorView& start) {
  const double apart = distance_between(tensor.value, start).largest;
  if (apart <= judge::eps_of_precision(repeat.precision) * largest_magnitude(tensor.value)) return;
  throw_bad_input(fmt::format("{}: {} differs by {:.2g} from the start of the run that it "
                              "repeats",
                              repeat.folder, tensor.name, apart),
                  "start the repeats from that run too: shardproof.load(model, golden)");
}

// How the repeats of one tensor lie: near each other, and how far from the run that they repeat.
struct Spread {
  TensorView first;
  double apart = 0;                                       // the farthest from the first
  double away = std::numeric_limits<double>::infinity();  // the nearest to the run
  std::map<std::string, double> distances = {};           // to the run, by the repeat's folder
};

void add_repeat(const RecordedRun& repeat, std::vector<GoldenTensor>& tensors,
                std::vector<Spread>& spreads) {
  spreads.resize(tensors.size());
  const std::map<std::string, TensorView> wholes = tensors_of_repeat(repeat);
  for (size_t i = 0; i < tensors.size(); ++i) {
    GoldenTensor& tensor = tensors[i];
    if (!is_floating(tensor.value.dtype()) || tensor.kind == ObservationKind::kRate) continue;
    const auto found = wholes.find(record_key(tensor.phase, tensor.step, tensor.name));
    const bool is_there = found != wholes.end();
    if (is_there && found->second.sizes() != tensor.value.sizes()) {
      throw_bad_input(fmt::format("{}: {} has another shape than in the run that it repeats",
                                  repeat.folder, tensor.name),
                      "record the repeats with the same script and options");
    }
    if (is_there && tensor.step == 0 && tensor.kind == ObservationKind::kParameter) {
      check_start(repeat, tensor, found->second);
    }
    add_member(tensor.value, is_there ? &found->second : nullptr, tensor);
    if (!is_there) continue;
    Spread& spread = spreads[i];
    if (!spread.first.defined()) spread.first = found->second;
    spread.apart = std::max(spread.apart, distance_between(spread.first, found->second).largest);
    const double distance = distance_between(tensor.value, found->second).largest;
    spread.distances[repeat.folder] = distance;
    spread.away = std::min(spread.away, distance);
  }
}

// Of the largest element, which no rounding of a whole run to bfloat16 moves so far while its
// repeats agree.
constexpr double kFarAway = 0.05;
constexpr double kFartherThanApart = 30;
// Of repeats that agree far better. A part of the run that rounds to bfloat16 within a module,
// where no repeat differs, moves a tensor by about 2^-8.
constexpr double kAway = 0.02, kMuchFartherThanApart = 3000;

bool is_of_other_inputs(const Spread& spread, double scale) {
  const bool far =
      spread.away >= kFarAway * scale && spread.apart * kFartherThanApart <= spread.away;
  return far || (spread.away >= kAway * scale && spread.apart > 0 &&
                 spread.apart * kMuchFartherThanApart <= spread.away);
}

bool is_before_a_step(const GoldenTensor& tensor) {
  return tensor.step == 1 &&
         (tensor.phase == Phase::kForward || tensor.kind == ObservationKind::kGradient);
}

// Roundings scatter about the run. Repeats that are near each other and far from it, in half of all
// tensors that no optimizer has touched, have computed something else.
void check_inputs(const RecordedRun& run, const std::vector<GoldenTensor>& tensors,
                  const std::vector<Spread>& spreads) {
  int64_t all = 0, far = 0;
  const GoldenTensor* worst = nullptr;
  Spread of_worst;
  double largest = 0;
  for (size_t i = 0; i < spreads.size(); ++i) {
    const Spread& spread = spreads[i];
    const double scale = is_before_a_step(tensors[i]) ? largest_magnitude(tensors[i].value) : 0;
    if (!spread.first.defined() || scale == 0) continue;
    ++all;
    if (!is_of_other_inputs(spread, scale)) continue;
    ++far;
    if (spread.away / scale <= largest) continue;
    largest = spread.away / scale;
    worst = &tensors[i];
    of_worst = spread;
  }
  if (!worst || 2 * far < all) return;
  throw_bad_input(
      fmt::format(
          "the repeats of {0} have other inputs than it: in {1} of step {2} they agree with "
          "each other to {3:.2g} and lie {4:.2g} away from the golden, whose largest "
          "element is {5:.2g}; so it is in {6} of {7} tensors",
          run.folder, worst->name, worst->step, of_worst.apart, of_worst.away,
          of_worst.away / largest, far, all),
      "draw inputs that are floats outside of shardproof.float64(), in one dtype: torch.randn "
      "draws "
      "other numbers in float64 than in float32");
}

double median_of_others(const std::map<std::string, double>& distances,
                        const std::string& left_out) {
  std::vector<double> others;
  for (const auto& [folder, distance] : distances) {
    if (folder != left_out) others.push_back(distance);
  }
  const auto middle = others.begin() + std::ssize(others) / 2;
  std::nth_element(others.begin(), middle, others.end());
  return *middle;
}

// A repeat that is far from the run where the others are not, in half of all tensors that no
// optimizer has touched, has computed something else, and would widen what is allowed.
void check_repeat(const RecordedRun& repeat, const std::vector<GoldenTensor>& tensors,
                  const std::vector<Spread>& spreads) {
  int64_t all = 0, far = 0;
  std::string example;
  for (size_t i = 0; i < spreads.size(); ++i) {
    const double scale = is_before_a_step(tensors[i]) ? largest_magnitude(tensors[i].value) : 0;
    const auto own = spreads[i].distances.find(repeat.folder);
    if (scale == 0 || own == spreads[i].distances.end() || spreads[i].distances.size() < 3)
      continue;
    ++all;
    const double others = median_of_others(spreads[i].distances, repeat.folder);
    if (own->second < kFarAway * scale || own->second <= kFartherThanApart * others) continue;
    if (++far > 1) continue;
    example = fmt::format(
        "{} of step {} lies {:.2g} away from the golden, and half of the others at "
        "most {:.2g}",
        tensors[i].name, tensors[i].step, own->second, others);
  }
  if (far == 0 || 2 * far < all) return;
  throw_bad_input(fmt::format("{} repeats another run than the other repeats do: its {}; so it is "
                              "in {} of {} tensors",
                              repeat.folder, example, far, all),
                  "record all repeats anew, with the script and options of the golden");
}

}  // namespace

Reference make_reference(const RecordedRun& run, Precision judged) {
  std::vector<GoldenTensor> tensors;
  Reference out;
  for (const Tensor& tensor : tensors_of(run)) {
    const RecordedPiece& first = *tensor.pieces.front();
    std::optional<TensorView> whole = assembled(run, tensor.pieces);
    const bool optional = is_step_scalar(first.kind) || is_optional_state(first.kind);
    if (!whole && first.phase == Phase::kStep && !optional) {
      bad_reference(run, first, "lacks elements: no rank recorded them",
                    "a rank did not record its piece; record the run again");
    }
    if (!whole) {
      Reference::LeftOut& left_out = out.left_out[first.name];
      left_out.kind = first.kind;
      left_out.steps.insert(first.step);
      continue;
    }
    tensors.push_back(
        golden_tensor(first.kind, first.name, first.phase, first.step, std::move(*whole)));
    if (first.is_concluded) out.concluded.insert(record_key(first.phase, first.step, first.name));
    for (const RecordedPiece* piece : tensor.pieces) {
      const Dtype dtype = piece->values.dtype();
      if (is_floating(dtype) && dtype != Dtype::kFloat64) {
        out.narrow.insert(record_key(first.phase, first.step, first.name));
      }
    }
  }
  add_rates(run, tensors);
  std::vector<Spread> spreads;
  for (const RecordedRun& repeat : run.repeats) {
    if (repeat.precision != judged) continue;
    add_repeat(repeat, tensors, spreads);
    ++out.repeats;
  }
  if (out.repeats > 1) check_inputs(run, tensors, spreads);
  for (const RecordedRun& repeat : run.repeats) check_repeat(repeat, tensors, spreads);
  out.record = GoldenRecord::of(std::move(tensors));
  out.knows_optimizer = run.knows_optimizer;
  out.groups = run.groups;
  out.settings = run.settings;
  out.max_norm = run.optimizer.max_norm;
  out.matrices = run.matrices;
  add_phase_scales(out);
  return out;
}

const ParameterGroup* group_of(const std::vector<ParameterGroup>& groups,
                               const std::string& parameter) {
  for (const ParameterGroup& group : groups) {
    if (group.parameters.contains(parameter)) return &group;
  }
  const std::string whole = name_without_layer(parameter);
  return whole == parameter ? nullptr : group_of(groups, whole);
}

}  // namespace shardproof::sim::recorded
