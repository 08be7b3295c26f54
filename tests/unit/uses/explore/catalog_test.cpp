// The catalog has every option of the table, and every kind of its values.
#include "sim/uses/explore/catalog.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "sim/case/scenario/schema.h"
#include "sim/uses/explore/effects.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

const Catalog& plain_catalog() {
  static const Catalog catalog(
      {{.name = "layer", .about = "", .options = {{"bias", true}, {"features", 6}}}}, {});
  return catalog;
}

std::vector<std::string> names_in(const CaseSettings& settings) {
  std::vector<std::string> names;
  for (const size_t kind : plain_catalog().kinds_in(settings)) {
    names.push_back(plain_catalog().describe(kind));
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

TEST_CASE("each key of a scenario is drawn, or is one of those that no match can have") {
  std::vector<std::string> absent;
  const Schema schema;
  for (const Option& key : schema.keys()) {
    const auto& options = plain_catalog().options();
    const bool drawn = std::any_of(options.begin(), options.end(), [&](const DrawnOption& option) {
      return option.path == key.path;
    });
    const bool records =
        key.type == KeyType::kRecords || key.path.find("scheduler[]") != key.path.npos;
    if (!drawn && !records && !key.path.starts_with("faults") && !key.path.starts_with("expect")) {
      absent.push_back(key.path);
    }
  }
  CHECK(absent == std::vector<std::string>{"name", "options", "judged", "tags", "model.folder",
                                           "data.case", "run.grad_norm.counts", "world.backend",
                                           "world.device", "world.hang_s",
                                           "world.links.inter_node.loss", "world.deadline_s"});
}

TEST_CASE("each edge of the code has kinds of values, and keys that the same code reads") {
  const auto& kinds = plain_catalog().edge_kinds();
  for (const Edge& edge : edges()) {
    if (std::string(edge.path).starts_with("options.")) continue;
    INFO(edge.path << " " << edge.size);
    const std::string name = edge.path + ("=near " + std::to_string(edge.size));
    CHECK(std::any_of(kinds.begin(), kinds.end(), [&](const auto& one) {
      return plain_catalog().describe(one.first) == name && one.second == edge.code;
    }));
    CHECK(plain_catalog().kinds_of_code(edge.code).size() > 5);
  }
  std::vector<std::string> read;
  for (const size_t kind : plain_catalog().kinds_of_code("attention")) {
    read.push_back(plain_catalog().describe(kind));
  }
  CHECK(has(read, "model.sliding_window=odd"));
  CHECK(has(read, "parallel.context_layout=contiguous"));
  CHECK_FALSE(has(read, "model.family=default"));
  CHECK_FALSE(has(read, "run.temperature=more"));
}

TEST_CASE("of the workloads, code of models reads models alone") {
  std::vector<std::string> read;
  for (const size_t kind : plain_catalog().kinds_of_code("logprobs")) {
    read.push_back(plain_catalog().describe(kind));
  }
  CHECK(has(read, "workload=logprobs"));
  CHECK_FALSE(has(read, "workload=layer"));
}

TEST_CASE("each name of an enum is a kind of value") {
  std::vector<std::string> all;
  for (size_t kind = 0; kind < plain_catalog().kinds().size(); ++kind) {
    all.push_back(plain_catalog().describe(kind));
  }
  for (const DrawnOption& option : plain_catalog().options()) {
    for (const std::string& choice : option.choices) {
      const std::string label = label_of(option, choice);
      CHECK(has(all, option.path + "=" + label));
    }
  }
}

TEST_CASE("numbers are of a kind by their default, their range, and the blocks of the code") {
  Option option;
  option.path = "model.vocab_size";
  option.type = KeyType::kInteger;
  option.default_value = 96;
  option.low = 1;
  option.high = 1e7;
  CHECK(label_of(option, 96) == "default");
  CHECK(label_of(option, 1) == "least");
  CHECK(label_of(option, 7) == "odd");
  CHECK(label_of(option, 8) == "even");
  CHECK(label_of(option, 1025) == "near 1024");
  CHECK(label_of(option, 2051) == "above 1024");
}

TEST_CASE("a value without an effect is none of a case") {
  CHECK_FALSE(has(names_in({{"parallel.context_rotation", "all_gather"}}),
                  "parallel.context_rotation=all_gather"));
  CHECK(has(names_in({{"parallel.context_rotation", "all_gather"},
                      {"parallel.context_parallel_size", 2}}),
            "parallel.context_rotation=all_gather"));
  CHECK_FALSE(has(names_in({{"workload", "logprobs"}}), "run.loss.kind=default"));
  CHECK(has(names_in({}), "run.loss.kind=default"));
}

TEST_CASE("an attribute has its effect in the stage that takes it") {
  const json stages = {{{"do", "train"}}, {{"do", "score"}, {"eval_mode", true}}};
  const CaseSettings settings = {{"workload", "policy"}, {"run.stages", stages}};
  CHECK_FALSE(has(names_in(settings), "run.stages[].eval_mode=true"));
  CHECK(in_effect("run.stages[].eval_mode", settings, stages[0]));
  CHECK(has(names_in(settings), "run.stages[].do=score"));
}

TEST_CASE("options of a registered workload are those of its cases alone") {
  CHECK(has(names_in({{"workload", "layer"}, {"options", {{"bias", false}}}}),
            "options.layer.bias=false"));
  CHECK(has(names_in({{"workload", "layer"}}), "options.layer.features=default"));
  CHECK_FALSE(has(names_in({}), "options.layer.features=default"));
}

TEST_CASE("texts take the values that scenarios use") {
  const Catalog catalog({}, {{{"model.family", "gemma3"}}});
  CHECK(std::any_of(catalog.kinds().begin(), catalog.kinds().end(),
                    [](const ValueKind& kind) { return kind.label == "gemma3"; }));
}

TEST_CASE("experts of a drawn config are those of its family, and ranks divide them") {
  const auto fitted = [](const char* family, int64_t tp, int64_t ep, int64_t etp) {
    CaseSettings settings = {
        {"model.family", family},
        {"model.config", {{"num_experts", 7}, {"num_experts_per_tok", 3}, {"n_group", 2}}},
        {"parallel.data_parallel_size", 8 / tp},
        {"parallel.tensor_parallel_size", tp},
        {"parallel.expert_parallel_size", ep},
        {"parallel.expert_tensor_parallel_size", etp},
        {"model.use_sliding_window", true},
        {"run.experts.bias.rate", 0.5}};
    fit_sizes(settings, {"parallel.expert_parallel_size"});
    INFO(settings.dump());
    CHECK(check_settings(settings, "t/experts.yaml", {}).spec.has_value());
    CHECK(setting_of(settings, "parallel.sequence_parallel") == (tp > 1));
    const bool has_bias = family != std::string("mixtral") && family != std::string("gpt_oss");
    CHECK(settings.contains("run.experts.bias.rate") == has_bias);
    return settings;
  };
  const CaseSettings mixtral = fitted("mixtral", 2, 4, 2);
  CHECK(mixtral["model.config"] == json{{"num_local_experts", 8}, {"num_experts_per_tok", 3}});
  const CaseSettings groups = fitted("deepseek_v3", 1, 2, 8);
  CHECK(groups["parallel.expert_tensor_parallel_size"] == 4);
  CHECK(groups["model.config"]["n_routed_experts"] == 8);
  CHECK(groups["model.config"]["num_experts_per_tok"] == 2);  // two of each chosen group
  CHECK(fitted("qwen3_moe", 4, 8, 1)["model.config"]["num_experts"] == 8);
}

TEST_CASE("a family without experts has nothing of experts") {
  CaseSettings settings = {{"model.config", {{"num_experts", 4}}},
                           {"parallel.expert_parallel_size", 2},
                           {"run.experts.z_coefficient", 0.5},
                           {"parallel.data_parallel_size", 2}};
  fit_sizes(settings, {});
  CHECK(settings == CaseSettings{{"parallel.data_parallel_size", 2}});
}

TEST_CASE("a drawn layout is fitted to the stages and layers of its case") {
  const auto fitted = [](const char* layout, int64_t ranks, int64_t layers, int64_t chunks) {
    CaseSettings settings = {
        {"parallel.pp.layout", layout},  {"parallel.pipeline_parallel_size", ranks},
        {"parallel.pp.chunks", chunks},  {"parallel.pp.schedule", chunks > 1 ? "bfs" : "gpipe"},
        {"parallel.pp.first_layers", 1}, {"model.num_hidden_layers", layers}};
    fit_sizes(settings, {"model.num_hidden_layers"});
    CHECK_FALSE(settings.contains("parallel.pp.first_layers"));
    CHECK(check_settings(settings, "t/layout.yaml", {}).spec.has_value());
    return settings["parallel.pp.layout"].get<std::string>();
  };
  CHECK(fitted("Ett|tL", 2, 5, 1) == "Etttt|tL");
  CHECK(fitted("Ett|tL", 2, 5, 2) == "Ett|t|t|tL");
  CHECK(fitted("E|tttL", 3, 4, 1) == "E||ttttL");
  CHECK(fitted("Ett|tL", 4, 2, 1) == "E|||ttL");  // fewer layers than stages
}

}  // namespace shardproof::sim::explore
