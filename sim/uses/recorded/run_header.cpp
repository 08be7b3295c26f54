#include "sim/uses/recorded/run_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "base/count_of.h"
#include "base/precision.h"
#include "sim/case/names.h"

namespace shardproof::sim::recorded {

using nlohmann::json;

namespace {

constexpr int64_t kMostIterations = 100;

std::string name_of_axis(const Fields& axis) {
  std::string name = axis.text("axis");
  if (name.empty() || name.find_first_of("+%/ ") != std::string::npos) {
    axis.fail("axis", fmt::format("is '{}', which is not a name of an axis", name));
  }
  return name;
}

Mesh mesh_of(const Fields& fields, int64_t world_size) {
  std::vector<MeshAxis> axes;
  std::vector<MeshPart> parts;
  for (const json& one : fields.list("mesh")) {
    const Fields axis(fields.where() + ": mesh", one);
    axis.expect_only({"axis", "size"});
    axes.push_back({name_of_axis(axis), axis.count("size", 1, Mesh::kMaxWorldSize)});
  }
  for (const json& one : fields.has("parts") ? fields.list("parts") : json::array()) {
    const Fields part(fields.where() + ": parts", one);
    part.expect_only({"axis", "stride", "size"});
    parts.push_back({name_of_axis(part), part.count("stride", 1, Mesh::kMaxWorldSize),
                     part.count("size", 1, Mesh::kMaxWorldSize)});
    const std::string& name = parts.back().name;
    const auto is_named = [&](const auto& other) { return other.name == name; };
    if (std::any_of(axes.begin(), axes.end(), is_named) ||
        std::any_of(parts.begin(), parts.end() - 1, is_named)) {
      part.fail("axis", fmt::format("is '{}', which is named twice", name));
    }
  }
  Mesh mesh(std::move(axes), std::move(parts));
  if (mesh.world_size() != world_size) {
    fields.fail("mesh", fmt::format("has {}, and world_size is {}",
                                    count_of(mesh.world_size(), "rank"), world_size));
  }
  return mesh;
}

// Keys of an optimizer and of a group of parameters.
std::vector<std::string> rule_keys(std::initializer_list<const char*> more) {
  std::vector<std::string> keys = {"type",    "rule",         "lr",       "betas",
                                   "eps",     "weight_decay", "momentum", "dampening",
                                   "amsgrad", "nesterov",     "maximize"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

// The rule of an optimizer and its numbers, into a run or a group of parameters. Before version 3 a
// run has the name of the class alone.
template <class Target>
void read_rule(const Fields& given, int64_t steps, Target& target) {
  target.optimizer.max_norm = 0;  // no clipping
  const std::string rule = given.text(given.has("rule") ? "rule" : "type");
  for (const std::string& key : rule_keys({})) {
    if (!given.has(key) || key == "lr") continue;  // rates are tensors, by their steps
    const json& value = given.value(key);
    target.settings[key] =
        value.is_number() ? fmt::format("{}", value.get<double>()) : value.dump();
  }
  const bool adam = rule == "adam" || rule == "adamw" || rule == "Adam" || rule == "AdamW";
  OptimizerSpec& optimizer = target.optimizer;
  optimizer.kind = adam ? OptimizerKind::kAdamW : OptimizerKind::kSgd;
  if (!given.value("lr").is_array()) given.fail("lr", "is not a list; write one for each step");
  target.lr = given.numbers("lr");
  target.knows_optimizer = (adam || rule == "sgd" || rule == "SGD") && !target.lr.empty();
  for (const double rate : target.lr) {
    if (!(rate >= 0)) given.fail("lr", fmt::format("has {}; a learning rate is at least 0", rate));
  }
  if (!target.lr.empty() && std::ssize(target.lr) != steps) {
    given.fail("lr", fmt::format("has {} for {}; write one for each step",
                                 count_of(std::ssize(target.lr), "learning rate"),
                                 count_of(steps, "step")));
  }
  if (!target.lr.empty()) optimizer.lr = target.lr.front();
  const std::vector<double> betas = given.numbers("betas");
  for (const double beta : betas) {
    if (!(beta >= 0 && beta < 1)) given.fail("betas", fmt::format("has {}", beta));
  }
  if (adam && !betas.empty() && betas.size() != 2) {
    given.fail("betas", fmt::format("has {}; Adam has two", count_of(std::ssize(betas), "number")));
  }
  if (betas.size() == 2) std::tie(optimizer.beta1, optimizer.beta2) = std::pair(betas[0], betas[1]);
  given.number("eps", optimizer.eps);
  given.number("weight_decay", optimizer.weight_decay);
  given.number("momentum", optimizer.momentum);
  double dampening = 0;
  given.number("dampening", dampening);
  for (const char* name : {"amsgrad", "nesterov", "maximize"}) {
    if (given.has(name)) given.flag(name);
  }
}

void read_optimizer(const Fields& fields, RecordedRun& run) {
  run.optimizer.max_norm = 0;  // no clipping
  if (!fields.has("optimizer")) return;
  const Fields given = fields.object("optimizer");
  given.expect_only(rule_keys({"max_norm", "groups"}));
  read_rule(given, run.steps, run);
  given.number("max_norm", run.optimizer.max_norm);
  if (!given.has("groups")) return;
  for (const json& one : given.list("groups")) {
    const Fields group(given.where() + ": groups", one);
    group.expect_only(rule_keys({"parameters"}));
    read_rule(group, run.steps, run.groups.emplace_back());
    run.groups.back().optimizer.max_norm = run.optimizer.max_norm;
    for (std::string& name : group.texts("parameters")) {
      run.groups.back().parameters.insert(std::move(name));
    }
  }
}

void read_matrices(const Fields& fields, RecordedRun& run) {
  if (!fields.has("matrices")) return;
  for (const json& one : fields.list("matrices")) {
    const Fields given(fields.where() + ": matrices", one);
    given.expect_only({"state", "momentum", "nesterov", "average", "coefficients", "iterations",
                       "blocks", "parameters"});
    MatrixRule rule;
    rule.state = given.text("state");
    given.number("momentum", rule.momentum);
    rule.nesterov = given.flag("nesterov");
    rule.average = given.flag("average");
    rule.iterations = given.count("iterations", 1, kMostIterations);
    const std::vector<double> coefficients = given.numbers("coefficients");
    if (coefficients.size() != rule.coefficients.size()) {
      given.fail("coefficients", fmt::format("has {}, and an iteration has 3",
                                             count_of(std::ssize(coefficients), "number")));
    }
    std::copy(coefficients.begin(), coefficients.end(), rule.coefficients.begin());
    if (given.has("blocks")) rule.blocks = given.counts("blocks");
    for (const std::string& name : given.texts("parameters")) run.matrices.emplace(name, rule);
  }
}

// What says where ranks and rows lie. The judge takes the former from the mesh.
void check_places(const Fields& fields, RecordedRun& run) {
  if (fields.has("batch")) {
    const Fields batch = fields.object("batch");
    batch.expect_only({"rows", "parts"});
    run.batch_rows = batch.count("rows", 0, int64_t{1} << 48);
    run.batch_parts = batch.count("parts", 1, std::max<int64_t>(run.batch_rows, 1));
  }
  if (fields.has("noise")) {
    const int64_t repeat = fields.count("noise", 1, kMostRepeats);
    if (run.world_size > 1) {
      fields.fail("noise", fmt::format("is {}, and a run of {} ranks is not a repeat of a run of "
                                       "one rank",
                                       repeat, run.world_size));
    }
  }
  if (!fields.has("coordinates")) return;
  const json& ranks = fields.list("coordinates");
  const std::vector<MeshAxis>& axes = run.mesh.axes();
  const auto place_of = [&](int64_t rank) {
    std::vector<int64_t> place;
    for (const MeshAxis& axis : axes) place.push_back(run.mesh.coordinate(axis.name, rank));
    return place;
  };
  for (int64_t rank = 0; rank < run.world_size; ++rank) {
    const json place = place_of(rank);
    const bool is_there = rank < std::ssize(ranks) && ranks[static_cast<size_t>(rank)] == place;
    if (is_there && std::ssize(ranks) == run.world_size) continue;
    fields.fail("coordinates",
                fmt::format("must have a list for each of {} ranks, with an index along each axis "
                            "of the mesh; that of rank {} is {}",
                            run.world_size, rank, place.dump()));
  }
}

// Keys that the format has (python/shardproof/run.schema.json); what nothing reads is checked too.
void check_keys(const Fields& fields) {
  fields.expect_only({"format", "version", "made_by", "world_size", "mesh", "parts", "precision",
                      "lifted", "steps", "only", "noise", "rows", "batch", "coordinates",
                      "optimizer", "from_step", "matrices"});
  if (fields.has("lifted")) fields.texts("lifted");
  if (!fields.has("made_by")) return;
  const Fields made_by = fields.object("made_by");
  for (const std::string& name : made_by.names()) made_by.text(name);
}

}  // namespace

void read_header(const Fields& fields, RecordedRun& run) {
  check_keys(fields);
  run.world_size = fields.count("world_size", 1, Mesh::kMaxWorldSize);
  run.mesh = mesh_of(fields, run.world_size);
  const std::string precision = fields.text("precision");
  const auto known = find_enum<Precision>(precision);
  if (!known) {
    fields.fail("precision",
                "is '" + precision + "'; " + known_names(precision, all_names<Precision>()));
  }
  run.precision = *known;
  run.steps = fields.count("steps", 1, kMaxSteps);
  if (fields.has("from_step")) run.from_step = fields.count("from_step", 1, kMaxSteps);
  read_optimizer(fields, run);
  read_matrices(fields, run);
  run.only = fields.has("only") ? fields.value("only").dump() : "null";
  run.rows = fields.has("rows") ? std::to_string(fields.count("rows", 1, int64_t{1} << 48)) : "all";
  check_places(fields, run);
}

}  // namespace shardproof::sim::recorded
