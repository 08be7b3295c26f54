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

}  // namespace

std::vector<PlanLine> plan_lines(const ModelConfig& config, const Mesh& mesh,
                                 const TensorParallelOptions& options) {
  const auto shapes = weight_shapes(config);
  std::vector<PlanLine> lines;
  for (const SlotStyle& slot : resolve_plan(config, options)) {
    const SlotPlacement placement =
        place_slot(config, mesh.size("tp"), options.sequence_parallel, slot);
    for (const char* part : {".weight", ".bias"}) {
      const auto found = shapes.find(slot.slot + part);
      if (found == shapes.end()) continue;
      lines.push_back(
          make_line(found->first, found->second, slot.style,
                    std::string_view(part) == ".weight" ? placement.weight : placement.bias, mesh));
    }
  }
  return lines;
}

std::string describe_plan(const ModelConfig& config, const Mesh& mesh,
                          const TensorParallelOptions& options) {
  const std::vector<PlanLine> lines = plan_lines(config, mesh, options);
  const std::vector<std::string> header = {"parameter", "style",       "layout",
                                           "global",    "per tp rank", "gradient"};
  std::vector<std::vector<std::string>> rows = {header};
  for (const PlanLine& line : lines) {
    rows.push_back({line.parameter, line.style, line.layout, list_text(line.global_shape),
                    local_text(line.local_shapes), line.gradient});
  }
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
