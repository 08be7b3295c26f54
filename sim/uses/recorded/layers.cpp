#include "sim/uses/recorded/layers.h"

#include <map>
#include <set>

namespace shardproof::sim::recorded {
namespace {

using Names = std::set<std::string>;

constexpr std::string_view kLayers = "layers.";

bool is_of_parameter(const RecordedPiece& piece) {
  // A count of steps is one number, which says nothing of the layer.
  return piece.phase == Phase::kStep && !is_step_scalar(piece.kind) &&
         piece.kind != ObservationKind::kStepCount;
}

bool lies_in_one_layer(const RecordedPiece& piece) {
  return piece.place.kind == Place::Kind::kBox && piece.shape.size() > 1 && piece.shape[0] == 1 &&
         piece.global_shape[0] > 1;
}

// "decoder.layers.mlp.weight" of layer 1 is "decoder.layers.1.mlp.weight"; "" without layers.
std::string name_in_layer(const std::string& parameter, int64_t layer) {
  const size_t at = parameter.find(kLayers);
  if (at == parameter.npos || (at > 0 && parameter[at - 1] != '.')) return "";
  std::string name = parameter;
  return name.insert(at + kLayers.size(), std::to_string(layer) + ".");
}

Names parameters_of(const RecordedRun& run) {
  Names names;
  for (const RecordedPiece& piece : run.pieces) {
    if (is_of_parameter(piece)) names.insert(parameter_of(piece.kind, piece.name));
  }
  return names;
}

// Those of which a rank holds several layers, each as a piece. Rows that are cut over ranks, one
// for each, are none.
Names held_by_layer(const RecordedRun& reference) {
  std::map<std::pair<int64_t, std::string>, std::set<int64_t>> layers;  // by rank and piece's name
  Names names;
  for (const RecordedPiece& piece : reference.pieces) {
    if (!is_of_parameter(piece) || !lies_in_one_layer(piece)) continue;
    std::set<int64_t>& of_name = layers[{piece.rank, piece.name}];
    of_name.insert(piece.place.offset[0]);
    if (of_name.size() > 1) names.insert(parameter_of(piece.kind, piece.name));
  }
  return names;
}

void keep_those_in_one_layer(const RecordedRun& run, Names& names) {
  for (const RecordedPiece& piece : run.pieces) {
    if (is_of_parameter(piece) && !lies_in_one_layer(piece))
      names.erase(parameter_of(piece.kind, piece.name));
  }
}

void split(RecordedRun& run, const Names& names) {
  for (RecordedPiece& piece : run.pieces) {
    if (!is_of_parameter(piece)) continue;
    const std::string parameter = parameter_of(piece.kind, piece.name);
    if (!names.contains(parameter)) continue;
    piece.name.replace(piece.name.size() - parameter.size(), parameter.size(),
                       name_in_layer(parameter, piece.place.offset[0]));
    piece.shape.erase(piece.shape.begin());
    piece.global_shape.erase(piece.global_shape.begin());
    piece.place.offset.erase(piece.place.offset.begin());
    piece.values = TensorView(piece.values.owner(), piece.values.dtype(), piece.shape);
  }
}

}  // namespace

std::string name_without_layer(const std::string& parameter) {
  const size_t at = parameter.find(kLayers);
  if (at == parameter.npos) return parameter;
  const size_t begin = at + kLayers.size(), end = parameter.find_first_not_of("0123456789", begin);
  if (end == begin || end == parameter.npos || parameter[end] != '.') return parameter;
  return parameter.substr(0, begin) + parameter.substr(end + 1);
}

void split_layers(RecordedRun& run, RecordedRun& reference) {
  Names names = held_by_layer(reference);
  keep_those_in_one_layer(reference, names);
  keep_those_in_one_layer(run, names);
  for (const RecordedRun& repeat : reference.repeats) keep_those_in_one_layer(repeat, names);
  const Names taken = parameters_of(reference);
  std::erase_if(names, [&](const std::string& name) {
    const std::string first = name_in_layer(name, 0);
    return first.empty() || taken.contains(first);
  });
  split(run, names);
  split(reference, names);
  for (RecordedRun& repeat : reference.repeats) split(repeat, names);
}

}  // namespace shardproof::sim::recorded
