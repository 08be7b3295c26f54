#include "sim/uses/recorded/placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>

#include "base/error.h"

namespace shardproof::sim::recorded {
namespace {

int64_t placed_size(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> values(static_cast<size_t>(end - begin));
  std::iota(values.begin(), values.end(), begin);
  return values;
}

void fill_flat(const Place& place, judge::IndexPlan& plan) {
  plan.dims = {range(place.begin, place.end)};
  plan.strides = {1};
  plan.row_length = plan.count = place.end - place.begin;
  plan.rows = {place.begin};
  if (plan.count > 0) plan.runs = {{0, 0, plan.count}};
  plan.layout = fmt::format("elements {} to {}", place.begin, place.end);
}

// Runs along the last dim, one for each combination of indices of the others.
void fill_box(const std::vector<int64_t>& offset, judge::IndexPlan& plan) {
  plan.strides = judge::contiguous_strides(plan.global_shape);
  int64_t start = 0;
  for (size_t d = 0; d < offset.size(); ++d) {
    plan.dims.push_back(range(offset[d], offset[d] + plan.local_shape[d]));
    start += offset[d] * plan.strides[d];
  }
  plan.count = placed_size(plan.local_shape);
  plan.rows = {start};
  plan.row_length = plan.local_shape.empty() ? 1 : plan.local_shape.back();
  for (size_t d = 0; d + 1 < offset.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t row : plan.rows) {
      for (int64_t i = 0; i < plan.local_shape[d]; ++i) next.push_back(row + i * plan.strides[d]);
    }
    plan.rows = std::move(next);
  }
  if (plan.count > 0) plan.runs = {{0, 0, plan.row_length}};
  if (plan.local_shape != plan.global_shape) {
    std::string text;
    for (size_t d = 0; d < offset.size(); ++d) {
      text += fmt::format("{}{}:{}", d > 0 ? ", " : "", offset[d], offset[d] + plan.local_shape[d]);
    }
    plan.layout = "part [" + text + "]";
  }
}

struct Part {
  std::vector<int64_t> offset;
  int64_t count = 0;  // of parts that fit
};

// Whether the part of `whole` from `start` on along dim `cut` equals `local`, as numbers of
// `Value`.
template <class Value>
bool is_part(const std::vector<Value>& local, const TensorView& whole, int64_t cut, int64_t length,
             int64_t start) {
  int64_t inner = 1, outer = 1;
  for (int64_t d = 0; d < whole.dim(); ++d) {
    if (d < cut) outer *= whole.size(d);
    if (d > cut) inner *= whole.size(d);
  }
  const int64_t row = length * inner;
  const Value* values = whole.data<Value>();
  for (int64_t i = 0; i < outer; ++i) {
    const Value* from = values + i * whole.size(cut) * inner + start * inner;
    if (!std::equal(from, from + row, local.data() + i * row)) return false;
  }
  return true;
}

template <class Value>
Part matching_part_as(const TensorView& local, const TensorView& whole, int64_t cut) {
  Part part{.offset = std::vector<int64_t>(static_cast<size_t>(whole.dim()), 0)};
  const std::vector<Value> values = values_as<Value>(local);
  const int64_t length = local.size(cut);
  for (int64_t start = 0; start < whole.size(cut); start += length) {
    if (!is_part(values, whole, cut, length, start)) continue;
    if (++part.count == 1) part.offset[static_cast<size_t>(cut)] = start;
  }
  return part;
}

// The parts of the golden's start parameter that equal the rank's.
Part matching_part(const TensorView& local, const TensorView& whole) {
  const Part none{.offset = std::vector<int64_t>(static_cast<size_t>(whole.dim()), 0)};
  if (local.dim() != whole.dim()) return none;
  int64_t cut = -1;
  for (int64_t d = 0; d < whole.dim(); ++d) {
    if (local.size(d) == whole.size(d)) continue;
    if (cut >= 0 || local.size(d) == 0 || whole.size(d) % local.size(d) != 0) return none;
    cut = d;
  }
  if (cut < 0) return none;
  return is_floating(whole.dtype()) ? matching_part_as<double>(local, whole, cut)
                                    : matching_part_as<int64_t>(local, whole, cut);
}

std::vector<int64_t> found_offset(const RecordedRun& run, const RecordedPiece& piece,
                                  const RecordedPiece* start, const GoldenRecord& reference,
                                  const GoldenTensor& golden) {
  const std::string where = fmt::format("{}/rank{}.jsonl:{}", run.folder, piece.rank, piece.line);
  const std::string shapes =
      fmt::format("{}: {} is [{}] and the reference's is [{}]", where, piece.name,
                  fmt::join(piece.shape, ", "), fmt::join(golden.value.sizes(), ", "));
  const std::string fix = "say how it is cut: record(.., layouts={\"<name>\": Shard(dim, axis)})";
  const GoldenTensor* whole = reference.find(
      Phase::kStep, 0,
      observed_name(ObservationKind::kParameter, parameter_of(piece.kind, piece.name)));
  const bool known = start && start->place.kind == Place::Kind::kBox;
  if (known && start->shape == piece.shape) return start->place.offset;
  const bool alike =
      start && whole && start->shape == piece.shape && whole->value.sizes() == golden.value.sizes();
  if (!alike) {
    throw_bad_input(shapes + ", and no start parameter shows which part", fix);
  }
  const Part part = matching_part(start->values, whole->value);
  if (part.count == 1) return part.offset;
  throw_bad_input(fmt::format("{}; {} parts of the start parameter equal the rank's", shapes,
                              part.count == 0 ? "no" : std::to_string(part.count)),
                  fix);
}

// Whether nothing says which part of the reference's tensor the piece is.
bool is_unplaced(const RecordedPiece& piece, const GoldenRecord& reference) {
  if (piece.place.kind != Place::Kind::kUnknown) return false;
  const GoldenTensor* golden = reference.find(piece.phase, piece.step, piece.name);
  return golden && golden->value.sizes() != piece.shape;
}

// Whether what was taken for rows of the batch is none, here or in the reference: tokens of an
// expert, or what has no dim of the batch.
bool is_misread(const RecordedPiece& piece, const Reference& reference) {
  const GoldenTensor* golden = reference.record.find(piece.phase, piece.step, piece.name);
  if (!golden || (!piece.is_concluded &&
                  !reference.concluded.contains(record_key(piece.phase, piece.step, piece.name))))
    return false;
  const std::vector<int64_t>& due = golden->value.sizes();
  const std::vector<int64_t>& shape = piece.global_shape;
  return due.size() != shape.size() || (!due.empty() && due.front() != shape.front());
}

// Which parameters the ranks of a pipeline lack. A module of which a stage holds a part gives there
// what the reference's gives in its middle.
class StageModules {
 public:
  StageModules(const RecordedRun& run, const GoldenRecord& reference) {
    for (const MeshAxis& axis : run.mesh.axes()) {
      has_stages_ |= axis.size > 1 && (axis.name == "pp" || axis.name == "pipeline");
    }
    if (!has_stages_) return;
    for (const GoldenTensor& one : reference.tensors()) {
      if (one.step != 0 || one.kind != ObservationKind::kParameter) continue;
      all_.insert(parameter_of(one.kind, one.name));
    }
    for (const RecordedPiece& piece : run.pieces) {
      if (piece.step != 0 || piece.kind != ObservationKind::kParameter) continue;
      held_[piece.rank].insert(parameter_of(piece.kind, piece.name));
    }
  }

  bool hold_a_part_of(const RecordedPiece& piece) const {
    if (!has_stages_ || piece.kind != ObservationKind::kOutput ||
        !piece.name.ends_with(kOutputSuffix))
      return false;
    const std::string begin = piece.name.substr(0, piece.name.size() - kOutputSuffix.size()) + ".";
    const auto held = held_.find(piece.rank);
    for (auto one = all_.lower_bound(begin); one != all_.end() && one->starts_with(begin); ++one) {
      if (held == held_.end() || !held->second.contains(*one)) return true;
    }
    return false;
  }

 private:
  bool has_stages_ = false;
  std::set<std::string> all_;
  std::map<int64_t, std::set<std::string>> held_;
};

}  // namespace

judge::IndexPlan plan_of(const RecordedPiece& piece) {
  judge::IndexPlan plan;
  plan.global_shape = piece.global_shape;
  plan.local_shape = piece.shape;
  switch (piece.place.kind) {
    case Place::Kind::kFlat:
      fill_flat(piece.place, plan);
      break;
    case Place::Kind::kBox:
      fill_box(piece.place.offset, plan);
      break;
    case Place::Kind::kUnknown:
      fill_box(std::vector<int64_t>(piece.shape.size(), 0), plan);
      break;
  }
  return plan;
}

void place_unknown_pieces(RecordedRun& run, const Reference& golden_run) {
  const GoldenRecord& reference = golden_run.record;
  const StageModules stages(run, reference);
  std::erase_if(run.pieces, [&](const RecordedPiece& piece) {
    const bool optional = piece.phase != Phase::kStep || is_optional_state(piece.kind);
    const bool left_out =
        optional && (is_unplaced(piece, reference) || is_misread(piece, golden_run) ||
                     stages.hold_a_part_of(piece));
    if (left_out) run.not_compared.insert(piece.name);
    return left_out;
  });
  std::map<std::pair<int64_t, std::string>, size_t> starts;  // by rank and name
  for (size_t i = 0; i < run.pieces.size(); ++i) {
    const RecordedPiece& piece = run.pieces[i];
    if (piece.step == 0 && piece.kind == ObservationKind::kParameter) {
      starts.emplace(std::pair(piece.rank, parameter_of(piece.kind, piece.name)), i);
    }
  }
  for (RecordedPiece& piece : run.pieces) {
    if (piece.place.kind != Place::Kind::kUnknown) continue;
    const GoldenTensor* golden = reference.find(piece.phase, piece.step, piece.name);
    std::vector<int64_t> offset(piece.shape.size(), 0);
    if (is_unplaced(piece, reference)) {
      const auto start = starts.find({piece.rank, parameter_of(piece.kind, piece.name)});
      offset =
          found_offset(run, piece, start == starts.end() ? nullptr : &run.pieces[start->second],
                       reference, *golden);
    }
    if (golden) piece.global_shape = golden->value.sizes();
    piece.place = {.kind = Place::Kind::kBox, .offset = std::move(offset)};
  }
}

double mean_share(const Mesh& mesh, const RecordedPiece& piece) {
  return 1 / static_cast<double>(mesh.peers_along(piece.partial_axes, piece.rank).size());
}

}  // namespace shardproof::sim::recorded
