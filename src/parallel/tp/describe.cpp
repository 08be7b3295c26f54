#include "parallel/tp/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/call.h"
#include "model/weights.h"
#include "parallel/tp/placement.h"

namespace shardproof {
namespace {

std::string gradient_text(const ParameterPlacement& placement) {
  if (placement.sum_grad_over.empty()) return "";
  if (placement.sum_grad_over.front() != "tp") return "summed over the ranks that share a kv head";
  return "summed over tp";
}

PlanLine make_line(const std::string& parameter, const std::vector<int64_t>& global_shape,
                   TpStyle style, const ParameterPlacement& placement, const Mesh& mesh) {
  PlanLine line{.parameter = parameter,
                .style = name_of(style),
                .layout = placement.layout.describe(),
                .global_shape = global_shape,
                .gradient = gradient_text(placement)};
  for (const int64_t rank : mesh.peers_along("tp", 0)) {
    line.local_shapes.push_back(placement.layout.local_shape(global_shape, mesh, rank));
  }
  return line;
}

// "[3,4]" when all ranks agree, else a list of each rank's shape.
std::string local_text(const std::vector<std::vector<int64_t>>& shapes) {
  const bool equal = std::all_of(shapes.begin(), shapes.end(),
                                 [&](const auto& shape) { return shape == shapes.front(); });
  if (equal) return list_text(shapes.front());
  std::vector<std::string> texts;
  for (const auto& shape : shapes) texts.push_back(list_text(shape));
  return fmt::format("{}", fmt::join(texts, " "));
}

using Row = std::vector<std::string>;
constexpr std::string_view kLayers = "model.layers.";

// The number of the parameter's layer; "" outside of the layers.
std::string layer_number(const std::string& parameter) {
  if (!parameter.starts_with(kLayers)) return "";
  return parameter.substr(kLayers.size(), parameter.find('.', kLayers.size()) - kLayers.size());
}

// The rows of a layer, without its number.
std::vector<Row> without_layer(std::vector<Row> rows) {
  for (Row& row : rows) row[0].erase(0, kLayers.size() + layer_number(row[0]).size());
  return rows;
}

// `rows` with equal layers in a row as one.
std::vector<Row> fold_layers(const std::vector<Row>& rows) {
  std::vector<Row> folded;
  std::vector<Row> last;  // of the layer before, without its number
  std::string first_layer;
  for (size_t begin = 0, end = 0; begin < rows.size(); begin = end) {
    const std::string layer = layer_number(rows[begin][0]);
    while (end < rows.size() && layer_number(rows[end][0]) == layer) ++end;
    const std::vector<Row> block(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                 rows.begin() + static_cast<std::ptrdiff_t>(end));
    const std::vector<Row> plain = layer.empty() ? std::vector<Row>() : without_layer(block);
    if (!plain.empty() && plain == last) {
      for (size_t i = 0; i < plain.size(); ++i) {
        folded[folded.size() - plain.size() + i][0] =
            fmt::format("{}{}-{}{}", kLayers, first_layer, layer, plain[i][0]);
      }
      continue;
    }
    folded.insert(folded.end(), block.begin(), block.end());
    first_layer = layer;
    last = plain;
  }
  return folded;
}

}  // namespace

std::vector<PlanLine> plan_lines(const ModelConfig& config, const Mesh& mesh,
                                 const TensorParallelOptions& options) {
  const auto shapes = weight_shapes(config);
  std::vector<PlanLine> lines;
  for (const SlotStyle& slot : resolve_plan(config, options)) {
    const SlotPlacement placement =
        place_slot(config, mesh.size("tp"), options.sequence_parallel, slot);
    const std::string sinks = slot.slot.substr(0, slot.slot.rfind('.') + 1) + "sinks";
    for (const std::string& name :
         {slot.slot + ".weight", slot.slot + ".bias", slot.slot + ".gate_up_proj",
          slot.slot + ".gate_up_proj_bias", slot.slot + ".down_proj", slot.slot + ".down_proj_bias",
          slot.role == SlotRole::kAttention ? sinks : ""}) {
      const auto found = shapes.find(name);
      if (found == shapes.end()) continue;
      const bool dims_of_linear =
          name.ends_with(".bias") && kind_of(slot.role) == SlotKind::kLinear;
      lines.push_back(make_line(found->first, found->second, slot.style,
                                dims_of_linear ? placement.bias : placement.weight, mesh));
    }
  }
  return lines;
}

std::string plan_text(const std::vector<PlanLine>& lines) {
  const Row header = {"parameter", "style", "layout", "global", "per rank", "gradient"};
  std::vector<Row> rows;
  for (const PlanLine& line : lines) {
    rows.push_back({line.parameter, line.style, line.layout, list_text(line.global_shape),
                    local_text(line.local_shapes), line.gradient});
  }
  rows = fold_layers(rows);
  rows.insert(rows.begin(), header);
  std::vector<size_t> widths(header.size(), 0);
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace shardproof
