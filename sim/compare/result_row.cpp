#include "sim/compare/result_row.h"

#include <cmath>
#include <limits>

#include "base/error.h"

namespace shardproof::sim {
namespace {

nlohmann::json json_number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_of(const nlohmann::json& json) {
  if (json.is_number()) return json.get<double>();
  if (json == "inf") return std::numeric_limits<double>::infinity();
  if (json == "-inf") return -std::numeric_limits<double>::infinity();
  return std::numeric_limits<double>::quiet_NaN();
}

Phase phase_of(const std::string& name) {
  for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute, Phase::kStep}) {
    if (name == phase_name(phase)) return phase;
  }
  throw Error({.kind = ErrorKind::kBadInput,
               .what = "unknown phase '" + name + "'",
               .fix = "use forward, backward, recompute or step"});
}

}  // namespace

nlohmann::json to_json(const ResultRow& row) {
  return {{"name", row.name},
          {"phase", phase_name(row.phase)},
          {"step", row.step},
          {"microbatch", row.microbatch},
          {"rank", row.rank},
          {"order", row.order},
          {"ok", row.ok},
          {"rounding_only", row.rounding_only},
          {"count", row.count},
          {"bad_count", row.bad_count},
          {"worst_ratio", json_number(row.worst_ratio)},
          {"worst_error", json_number(row.worst_error)},
          {"golden_value", json_number(row.golden_value)},
          {"actual_value", json_number(row.actual_value)},
          {"allowance", json_number(row.allowance)},
          {"golden_scale", json_number(row.golden_scale)},
          {"worst_global_index", row.worst_global_index},
          {"worst_local_index", row.worst_local_index},
          {"global_shape", row.global_shape},
          {"local_shape", row.local_shape},
          {"factor", json_number(row.factor)},
          {"factor_residual", json_number(row.factor_residual)},
          {"dtype", row.dtype},
          {"layout", row.layout},
          {"replicas", row.replicas},
          {"redundant", row.redundant},
          {"digest", row.digest},
          {"problem", row.problem},
          {"calls_before", row.calls_before},
          {"partial", row.partial},
          {"partial_axes", row.partial_axes},
          {"tokens", row.tokens},
          {"compares_replicas", row.compares_replicas},
          {"covered", row.covered},
          {"coverage_of_all", row.coverage_of_all},
          {"hints", row.hints}};
}

ResultRow result_row_from_json(const nlohmann::json& json) {
  ResultRow row;
  json.at("name").get_to(row.name);
  row.phase = phase_of(json.at("phase").get<std::string>());
  json.at("step").get_to(row.step);
  json.at("microbatch").get_to(row.microbatch);
  json.at("rank").get_to(row.rank);
  json.at("order").get_to(row.order);
  json.at("ok").get_to(row.ok);
  json.at("rounding_only").get_to(row.rounding_only);
  json.at("count").get_to(row.count);
  json.at("bad_count").get_to(row.bad_count);
  row.worst_ratio = number_of(json.at("worst_ratio"));
  row.worst_error = number_of(json.at("worst_error"));
  row.golden_value = number_of(json.at("golden_value"));
  row.actual_value = number_of(json.at("actual_value"));
  row.allowance = number_of(json.at("allowance"));
  row.golden_scale = number_of(json.at("golden_scale"));
  json.at("worst_global_index").get_to(row.worst_global_index);
  json.at("worst_local_index").get_to(row.worst_local_index);
  json.at("global_shape").get_to(row.global_shape);
  json.at("local_shape").get_to(row.local_shape);
  row.factor = number_of(json.at("factor"));
  row.factor_residual = number_of(json.at("factor_residual"));
  json.at("dtype").get_to(row.dtype);
  json.at("layout").get_to(row.layout);
  json.at("replicas").get_to(row.replicas);
  json.at("redundant").get_to(row.redundant);
  json.at("digest").get_to(row.digest);
  json.at("problem").get_to(row.problem);
  json.at("calls_before").get_to(row.calls_before);
  row.partial = json.value("partial", false);
  row.partial_axes = json.value("partial_axes", row.partial_axes);
  row.tokens = json.value("tokens", row.tokens);
  row.compares_replicas = json.value("compares_replicas", true);
  row.covered = json.value("covered", row.covered);
  row.coverage_of_all = json.value("coverage_of_all", row.coverage_of_all);
  row.hints = json.value("hints", row.hints);
  return row;
}

}  // namespace shardproof::sim
