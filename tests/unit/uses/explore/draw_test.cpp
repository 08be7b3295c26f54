// Drawn cases: valid, replayable, with the pair that was missing.
#include "sim/uses/explore/draw.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

namespace {

KnownWorkload layer() {
  return {.name = "layer",
          .about = "",
          .options = {{"a", false}, {"b", false}, {"c", false}, {"d", false}}};
}

size_t kind_named(const Catalog& catalog, const std::string& name) {
  for (size_t kind = 0; kind < catalog.kinds().size(); ++kind) {
    if (catalog.describe(kind) == name) return kind;
  }
  FAIL("no kind " + name);
  return 0;
}

KindPair pair_of(const Catalog& catalog, const std::string& a, const std::string& b) {
  return std::minmax(kind_named(catalog, a), kind_named(catalog, b));
}

}  // namespace

TEST_CASE("each drawn case passes the checks before a run and has a new pair") {
  const Catalog catalog({}, {});
  PairCoverage coverage(catalog);
  Drawer drawer(catalog, {});
  std::mt19937_64 random(3);
  for (int i = 0; i < 30; ++i) {
    const CaseSettings settings = drawer.draw_missing(coverage, coverage, random);
    const CheckedCase checked = check_settings(settings, "t/drawn.yaml", {});
    INFO(settings.dump() << checked.sentence);
    REQUIRE(checked.spec.has_value());
    CHECK(checked.spec->parallel.world_size() <= kMostDrawnRanks);
    CHECK(checked.spec->faults.empty());
    CHECK(coverage.add(catalog.kinds_in(settings)) > 0);
  }
}

TEST_CASE("a drawn case has more new pairs than a case of some missing pair") {
  const Catalog catalog({}, {});
  const auto pairs_of_20 = [&](const auto& draw) {
    PairCoverage coverage(catalog);
    Drawer drawer(catalog, {});
    std::mt19937_64 random(7);
    for (int cases = 0; cases < 20; ++cases) {
      coverage.add(catalog.kinds_in(draw(drawer, coverage, random)));
    }
    return coverage.pairs_run();
  };
  const int64_t chosen = pairs_of_20([](auto& drawer, auto& coverage, auto& random) {
    return drawer.draw_missing(coverage, coverage, random);
  });
  const int64_t plain = pairs_of_20([](auto& drawer, auto& coverage, auto& random) {
    for (;;) {
      const KindPair missing = coverage.missing_pair(random).first;
      if (const auto settings = drawer.draw(missing, random, Drawer::kTries)) return *settings;
    }
  });
  CHECK(chosen > plain + plain / 10);
}

TEST_CASE("cases of a registered workload have more triples of values than those of any pair") {
  const Catalog catalog({layer()}, {});
  const std::vector<size_t>& own = catalog.own_kinds().at("layer");
  const auto triples_of_20 = [&](const auto& draw) {
    Drawer drawer(catalog, {.workloads = {layer()}});
    std::mt19937_64 random(5);
    std::set<std::set<size_t>> drawn;
    for (int cases = 0; cases < 20; ++cases) {
      std::vector<size_t> kinds = catalog.kinds_in(draw(drawer, random));
      std::erase_if(kinds, [&](size_t kind) {
        const std::string& path = catalog.options()[catalog.kinds()[kind].option].path;
        return !path.starts_with("options.") && !path.ends_with("_size") && path != "precision";
      });
      for (size_t i = 0; i < kinds.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          for (size_t k = 0; k < j; ++k) drawn.insert({kinds[i], kinds[j], kinds[k]});
        }
      }
    }
    return drawn.size();
  };
  const size_t chosen = triples_of_20(
      [](Drawer& drawer, auto& random) { return drawer.draw_registered(random).value(); });
  const size_t plain = triples_of_20([&](Drawer& drawer, auto& random) {
    for (;;) {
      const KindPair pair = std::minmax(any(own, random), any(own, random));
      if (const auto settings = drawer.draw(pair, random, Drawer::kTries)) return *settings;
    }
  });
  CHECK(chosen > plain);
}

TEST_CASE("of restricted workloads, others have no cases, and edges belong to models") {
  Catalog catalog({layer(), {.name = "other", .about = "", .options = {{"a", false}}}}, {});
  catalog.restrict_to("workload", {"layer"});
  Drawer drawer(catalog, {.workloads = {layer()}});
  std::mt19937_64 random(5);
  for (int i = 0; i < 10; ++i) {
    const auto settings = drawer.draw_registered(random);
    REQUIRE(settings);
    CHECK((*settings)["workload"] == "layer");
  }
  const int64_t drawn = drawer.counts().drawn;
  CHECK_FALSE(drawer.draw_at_edge(random));
  catalog.restrict_to("workload", {"train"});
  CHECK_FALSE(drawer.draw_registered(random));
  CHECK(drawer.counts().drawn == drawn);
}

TEST_CASE("a pair that needs no registered workload is drawn in a model, if any is drawn") {
  Catalog catalog({layer()}, {});
  const auto workload_of = [&](std::mt19937_64& random) {
    const KindPair pair =
        pair_of(catalog, "precision=bfloat16", "parallel.tensor_parallel_size=even");
    const auto settings = Drawer(catalog, {.workloads = {layer()}}).draw(pair, random, 20);
    REQUIRE(settings);
    return (*settings)["workload"].get<std::string>();
  };
  std::mt19937_64 random(5);
  for (int i = 0; i < 10; ++i) CHECK(workload_of(random) != "layer");
  catalog.restrict_to("workload", {"layer"});
  CHECK(workload_of(random) == "layer");
}

TEST_CASE("a seed draws the same cases again") {
  const Catalog catalog({}, {});
  const auto draw = [&] {
    PairCoverage coverage(catalog);
    Drawer drawer(catalog, {});
    std::mt19937_64 random(11);
    return drawer.draw_missing(coverage, coverage, random);
  };
  CHECK(draw() == draw());
}

TEST_CASE("a drawn pair brings what both of its values need") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  const auto settings = drawer.draw(
      pair_of(catalog, "parallel.replicate_size=even", "run.optimizer.kwargs.nesterov=true"),
      random, 20);
  REQUIRE(settings.has_value());
  CHECK((*settings)["parallel.data_parallel"] == "hybrid");
  CHECK(std::set<nlohmann::json>{"SGD", "Muon"}.contains((*settings)["run.optimizer.name"]));
  CHECK((*settings)["parallel.data_parallel_size"] > 1);
}

TEST_CASE("many policies have a stage before and behind training") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(13);
  const KindPair pair = pair_of(catalog, "workload=policy", "precision=float32");
  int policies = 0, again = 0;
  while (policies < 300) {
    const auto settings = drawer.draw(pair, random, Drawer::kTries);
    if (!settings) continue;
    ++policies;
    std::set<std::string> before, behind;  // in the order of the stages
    bool trained = false;
    for (const nlohmann::json& stage : (*settings)["run.stages"]) {
      const std::string kind = stage["do"];
      if (trained && before.contains(kind)) behind.insert(kind);
      trained = trained || (kind == "train" && !before.empty());
      before.insert(kind);
    }
    again += behind.empty() ? 0 : 1;
  }
  CHECK(again >= 90);
}

TEST_CASE("a pair that the checks always refuse is given up") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  CHECK_FALSE(drawer.draw(pair_of(catalog, "run.optimizer.kwargs.amsgrad=true", "seed=default"),
                          random, 5));
  CHECK_FALSE(
      drawer.draw(pair_of(catalog, "workload=logprobs", "run.loss.kind=clipped_pg"), random, 5));
  CHECK(drawer.counts().refused > 0);
}

TEST_CASE("restricted options have the given names alone") {
  Catalog catalog({}, {});
  catalog.restrict_to("precision", {"bfloat16"});
  catalog.restrict_to("workload", {"logprobs"});
  PairCoverage coverage(catalog);
  Drawer drawer(catalog, {});
  std::mt19937_64 random(2);
  for (int i = 0; i < 10; ++i) {
    const CaseSettings settings = drawer.draw_missing(coverage, coverage, random);
    CHECK(settings["precision"] == "bfloat16");
    CHECK(settings["workload"] == "logprobs");
    coverage.add(catalog.kinds_in(settings));
  }
}

TEST_CASE("pairs are new once, and those given up are not missing") {
  const Catalog catalog({}, {});
  PairCoverage coverage(catalog);
  std::mt19937_64 random(1);
  const std::vector<size_t> kinds = catalog.kinds_in({});
  const auto count = static_cast<int64_t>(kinds.size());
  CHECK(coverage.add(kinds) == count * (count - 1) / 2);
  CHECK(coverage.add(kinds) == 0);
  for (int i = 0; i < 50; ++i) {
    const auto [pair, found] = coverage.missing_pair(random);
    REQUIRE(found);
    CHECK_FALSE(coverage.has_run(pair));
    coverage.give_up(pair);
  }
  CHECK(coverage.pairs_given_up() == 50);
  CHECK(coverage.pairs_run() == count * (count - 1) / 2);
}

TEST_CASE("sizes are fitted to the mesh, except those of the pair") {
  CaseSettings settings = {{"parallel.tensor_parallel_size", 3},
                           {"parallel.data_parallel_size", 8},
                           {"parallel.context_parallel_size", 4},
                           {"model.num_attention_heads", 4},
                           {"data.batch_size", 3}};
  fit_sizes(settings, {"parallel.tensor_parallel_size"});
  CHECK(settings["parallel.tensor_parallel_size"] == 3);
  CHECK(settings["model.num_attention_heads"] == 6);
  CHECK(check_settings(settings, "t/fit.yaml", {}).spec->parallel.world_size() <= kMostDrawnRanks);
}

TEST_CASE("a budget of tokens has samples to fill it") {
  const auto samples = [](int64_t tokens, const char* fixed) {
    CaseSettings settings = {{"run.sequence_packing.enabled", true},
                             {"run.sequence_packing.train_mb_tokens", tokens},
                             {"data.batch_size", 4}};
    fit_sizes(settings, {fixed});
    CHECK(check_settings(settings, "t/rows.yaml", {}).spec.has_value());
    return settings["data.batch_size"].get<int64_t>();
  };
  CHECK(samples(131, "") == 9);  // of 16 tokens each
  CHECK(samples(33, "") == 4);
  CHECK(samples(131, "data.batch_size") == 4);
}

TEST_CASE("the last sample of a drawn case has a token that counts") {
  CaseSettings settings = {{"data.lengths", {7, 1, 1}}, {"data.dropped_samples", {0, 1, 2}}};
  fit_sizes(settings, {"data.lengths", "data.dropped_samples"});
  CHECK(settings["data.lengths"] == nlohmann::json({7, 1, 2}));
  CHECK(settings["data.dropped_samples"] == nlohmann::json({0, 1}));
  settings = {{"data.batch_size", 1}, {"data.sequence_length", 1}, {"data.dropped_samples", {0}}};
  fit_sizes(settings, {});
  CHECK(settings["data.sequence_length"] == 2);
  CHECK_FALSE(settings.contains("data.dropped_samples"));
}

TEST_CASE("schedule, chunks, layers and microbatches of stages fit each other") {
  const std::vector<CaseSettings> drawn = {
      {{"parallel.pp.schedule", "interleaved"}, {"parallel.pp.group", 1}},
      {{"parallel.pp.schedule", "dualpipev"}, {"data.lengths", {3, 4, 5}}},
      {{"parallel.pp.schedule", "zbv"},
       {"parallel.pp.chunks", 5},
       {"parallel.tp.deferred_wgrad", 2}},
      {{"parallel.pp.first_layers", 3}, {"parallel.pp.count_head", true}},
      {{"parallel.pp.count_embedding", true}, {"parallel.pp.count_head", true}},
      {{"run.frozen", {"*.mlp.*"}}, {"run.scoring.fused_norm", true}, {"model.init", "own_stream"}},
      {{"parallel.pp.schedule", "interleaved"}, {"run.sequence_packing.enabled", true}},
      {{"reference.mesh.pp", 3}, {"parallel.pp.last_layers", 2}},
  };
  CaseSettings policy = {
      {"workload", "policy"},
      {"parallel.pipeline_parallel_size", 2},
      {"parallel.data_parallel_size", 2},
      {"model.num_hidden_layers", 2},
      {"run.stages", {{{"do", "save"}}, {{"do", "load"}, {"pipeline_parallel_size", 0}}}}};
  fit_sizes(policy, {"model.num_hidden_layers"});  // a load with as many stages as before
  CHECK(policy["parallel.pipeline_parallel_size"] == 2);
  for (const int64_t ranks : {2, 3}) {
    for (CaseSettings settings : drawn) {
      settings["parallel.pipeline_parallel_size"] = ranks;
      fit_sizes(settings, {"parallel.pipeline_parallel_size", "parallel.pp.schedule"});
      INFO(settings.dump());
      CHECK(settings["parallel.pipeline_parallel_size"] == ranks);
      CHECK(check_settings(settings, "t/stages.yaml", {}).spec.has_value());
    }
  }
}

TEST_CASE("a case at an edge of the code has that size and something else that the code reads") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  int64_t found = 0;
  for (int i = 0; i < 20; ++i) {
    const auto settings = drawer.draw_at_edge(random);
    if (!settings) continue;
    ++found;
    const std::vector<size_t> kinds = catalog.kinds_in(*settings);
    const auto has = [&](size_t kind) {
      return std::binary_search(kinds.begin(), kinds.end(), kind);
    };
    CHECK(std::any_of(catalog.edge_kinds().begin(), catalog.edge_kinds().end(),
                      [&](const auto& edge) {
                        const auto read = catalog.kinds_of_code(edge.second);
                        return has(edge.first) && std::any_of(read.begin(), read.end(), has);
                      }));
  }
  CHECK(found >= 10);
}

TEST_CASE("without registered workloads none of their cases is drawn") {
  const Catalog catalog({}, {});
  Drawer drawer(catalog, {});
  std::mt19937_64 random(5);
  CHECK_FALSE(drawer.draw_registered(random));
}

TEST_CASE("a window that is switched on is that of some layers") {
  CaseSettings settings = {{"model.family", "qwen3"},
                           {"model.use_sliding_window", true},
                           {"model.num_hidden_layers", 3}};
  fit_sizes(settings, {});
  CHECK(settings["model.max_window_layers"] == 1);
  settings["model.max_window_layers"] = 0;
  fit_sizes(settings, {});
  CHECK(settings["model.max_window_layers"] == 0);
  CaseSettings usual = {{"model.family", "qwen3"}, {"model.use_sliding_window", true}};
  fit_sizes(usual, {"model.max_window_layers"});
  CHECK_FALSE(usual.contains("model.max_window_layers"));
}

TEST_CASE("heads are not fitted to tp where a plan leaves attention whole") {
  const auto heads = [](const nlohmann::json& plan) {
    CaseSettings settings = {{"parallel.tensor_parallel_size", 4},
                             {"model.num_attention_heads", 3},
                             {"model.num_key_value_heads", 1},
                             {"parallel.custom_parallel_plan", plan}};
    fit_sizes(settings, {"parallel.tensor_parallel_size"});
    CHECK(check_settings(settings, "t/plan.yaml", {}).spec.has_value());
    return settings["model.num_attention_heads"].get<int64_t>();
  };
  CHECK(heads({{"*.self_attn.attention", "Replicate"},
               {"*.self_attn.*_proj", "ColumnParallelGathered"},
               {"*.self_attn.o_proj", "RowParallelScattered"}}) == 3);
  CHECK(heads({{"lm_head", "Replicate"}, {"model.embed_tokens", "Replicate"}}) == 4);
}

TEST_CASE("checkpoints are not spread where sequences are cut") {
  const char *spread = "parallel.tp.spread_checkpoints", *cut = "parallel.sequence_parallel";
  const auto fitted = [&](const char* fixed) {
    CaseSettings settings = {{"parallel.tensor_parallel_size", 2},
                             {spread, true},
                             {cut, true},
                             {"parallel.tp.gather_buffer", true}};
    fit_sizes(settings, {fixed});
    return settings;
  };
  CHECK_FALSE(fitted("").contains(spread));
  CHECK(fitted(cut)[cut] == true);
  CHECK(fitted(spread) == CaseSettings{{"parallel.tensor_parallel_size", 2}, {spread, true}});
  CaseSettings loads = {
      {"workload", "policy"},
      {"parallel.tensor_parallel_size", 2},
      {spread, true},
      {"run.stages",
       {{{"do", "save"}},
        {{"do", "load"}, {"tensor_parallel_size", 2}, {"sequence_parallel", true}}}}};
  CaseSettings needed = loads;
  fit_sizes(loads, {});
  CHECK_FALSE(loads.contains(spread));
  CHECK(loads["run.stages"][1]["sequence_parallel"] == true);
  fit_sizes(needed, {spread});
  CHECK_FALSE(needed["run.stages"][1].contains("sequence_parallel"));
}

TEST_CASE("kv heads that several ranks share are left") {
  const auto fitted = [](int64_t tp, int64_t heads, int64_t kv) {
    CaseSettings settings = {{"parallel.tensor_parallel_size", tp},
                             {"model.num_attention_heads", heads},
                             {"model.num_key_value_heads", kv}};
    fit_sizes(settings, {"parallel.tensor_parallel_size"});
    CHECK(check_settings(settings, "t/kv.yaml", {}).spec.has_value());
    return settings["model.num_key_value_heads"].get<int64_t>();
  };
  CHECK(fitted(4, 8, 2) == 2);
  CHECK(fitted(3, 3, 1) == 1);
  CHECK(fitted(4, 12, 3) != 3);  // neither divides the other
  CHECK(fitted(2, 8, 3) != 3);   // no even share of the query heads
}

}  // namespace shardproof::sim::explore
