// Shrinking, with a stand-in for the run that fails where a rule says so.
#include "sim/uses/explore/shrink.h"

#include <catch2/catch.hpp>
#include <set>

#include "sim/uses/explore/smaller_cases.h"

namespace shardproof::sim::explore {

using namespace judge;

using nlohmann::json;

namespace {

const CaseSettings kLarge = {{"parallel.tensor_parallel_size", 4},
                             {"parallel.data_parallel_size", 4},
                             {"model.num_hidden_layers", 8},
                             {"model.hidden_size", 96},
                             {"run.loss.kind", "clipped_pg"},
                             {"run.loss.beta", 0.5},
                             {"run.steps", 3},
                             {"data.lengths", {15, 1, 9, 12}},
                             {"world.digests", true}};

Signatures fails_where(const std::function<bool(const CaseSettings&)>& rule) {
  return [rule](const std::vector<CaseSettings>& cases) {
    std::vector<std::string> signatures;
    for (const CaseSettings& one : cases) {
      const CheckedCase checked = check_settings(one, "t/one.yaml", {});
      signatures.push_back(!checked.spec ? "refused" : rule(one) ? "wrong" : "");
    }
    return signatures;
  };
}

Signatures refused_unless(const std::function<bool(const CaseSettings&)>& rule) {
  return [rule](const std::vector<CaseSettings>& cases) {
    std::vector<std::string> signatures;
    for (const CaseSettings& one : cases) signatures.push_back(rule(one) ? "wrong" : "refused");
    return signatures;
  };
}

// 1 of an axis that follows from the others.
int64_t size(const CaseSettings& settings, const char* path) {
  const json given = setting_of(settings, path);
  return given.is_null() ? 1 : given.get<int64_t>();
}

}  // namespace

TEST_CASE("everything goes that the failure does not need") {
  const auto rule = [](const CaseSettings& one) {
    return size(one, "parallel.tensor_parallel_size") >= 2 &&
           setting_of(one, "run.loss.kind") == "clipped_pg";
  };
  const Shrunk shrunk = shrink_case(kLarge, "wrong", fails_where(rule), [] { return true; });
  CHECK(shrunk.in_time);
  CHECK(shrunk.settings["parallel.tensor_parallel_size"] == 2);
  CHECK(shrunk.settings["run.loss.kind"] == "clipped_pg");
  CHECK(shrunk.settings["model.num_hidden_layers"] == 1);
  CHECK_FALSE(shrunk.settings.contains("parallel.data_parallel_size"));
  CHECK_FALSE(shrunk.settings.contains("run.loss.beta"));
  CHECK_FALSE(shrunk.settings.contains("run.steps"));
  CHECK_FALSE(shrunk.settings.contains("world.digests"));
  CHECK(rule(shrunk.settings));
  CHECK_FALSE(shrunk.kept.empty());
}

TEST_CASE("sizes that have to agree with an axis become smaller with it") {
  const CaseSettings large = {{"workload", "mapping"},
                              {"parallel.tensor_parallel_size", 4},
                              {"options", {{"ranks", 4}, {"uneven", true}}}};
  const auto rule = [](const CaseSettings& one) {  // any other number of ranks is refused
    return setting_of(one, "options").value("ranks", 0) ==
               size(one, "parallel.tensor_parallel_size") &&
           size(one, "parallel.tensor_parallel_size") >= 2;
  };
  const WorkloadOptions options = {
      {"ranks", 2, "", CountsRanks{"tp"}}, {"size", 8, "", CutOver{"tp"}}, {"uneven", false}};
  const Shrunk shrunk = shrink_case(
      large, "wrong", refused_unless(rule), [] { return true; }, options);
  CHECK(shrunk.settings["parallel.tensor_parallel_size"] == 2);
  CHECK(shrunk.settings["options"]["ranks"] == 2);
}

TEST_CASE("stages, their chunks and microbatches become fewer together") {
  const CaseSettings large = {{"parallel.pipeline_parallel_size", 4},
                              {"parallel.pp.schedule", "interleaved"},
                              {"parallel.pp.chunks", 2},
                              {"model.num_hidden_layers", 8},
                              {"run.train_micro_batch_size", 1},
                              {"data.lengths", {9, 4, 7, 11, 2, 8, 5, 3}}};
  // As the ranks refuse it: layers and microbatches that do not divide.
  const auto fits = [](const CaseSettings& one) {
    const int64_t ranks = size(one, "parallel.pipeline_parallel_size");
    const int64_t chunks = size(one, "parallel.pp.chunks");
    const bool interleaved = setting_of(one, "parallel.pp.schedule") == "interleaved";
    const int64_t samples =
        one.contains("data.lengths")
            ? static_cast<int64_t>(one["data.lengths"].size())
            : (one.contains("data.batch_size") ? size(one, "data.batch_size") : 4);
    const int64_t micro = size(one, "run.train_micro_batch_size");
    const int64_t microbatches = micro > 0 ? samples / micro : 1;
    if (ranks > 1 && size(one, "model.num_hidden_layers") % (ranks * chunks) != 0) return false;
    if (ranks > 1 && interleaved != (chunks > 1)) return false;
    return !interleaved || ranks == 1 || microbatches % ranks == 0;
  };
  const auto shrunk_where = [&](const std::function<bool(const CaseSettings&)>& rule) {
    const auto both = [&](const CaseSettings& one) { return fits(one) && rule(one); };
    return shrink_case(large, "wrong", fails_where(both), [] { return true; }).settings;
  };
  const CaseSettings in_stages = shrunk_where(
      [](const CaseSettings& one) { return size(one, "parallel.pipeline_parallel_size") >= 2; });
  CHECK(in_stages["parallel.pipeline_parallel_size"] == 2);
  CHECK(size(in_stages, "parallel.pp.chunks") == 1);
  CHECK(size(in_stages, "model.num_hidden_layers") == 2);
  const CaseSettings in_chunks = shrunk_where([](const CaseSettings& one) {
    return size(one, "parallel.pipeline_parallel_size") >= 2 &&
           setting_of(one, "parallel.pp.schedule") == "interleaved" &&
           size(one, "run.train_micro_batch_size") == 1;
  });
  CHECK(in_chunks["parallel.pipeline_parallel_size"] == 2);
  CHECK(in_chunks["parallel.pp.chunks"] == 2);
  CHECK(size(in_chunks, "model.num_hidden_layers") == 4);
  CHECK(in_chunks.value("data.lengths", json::array()).size() <= 2);
}

TEST_CASE("layers go with their types") {
  const CaseSettings large = {
      {"model.num_hidden_layers", 3},
      {"model.layer_types", {"sliding_attention", "full_attention", "sliding_attention"}}};
  const auto rule = [](const CaseSettings& one) {
    return one.contains("model.layer_types") &&
           one["model.layer_types"].size() ==
               static_cast<size_t>(size(one, "model.num_hidden_layers"));
  };
  const Shrunk shrunk = shrink_case(large, "wrong", refused_unless(rule), [] { return true; });
  CHECK(shrunk.settings["model.num_hidden_layers"] == 1);
  CHECK(shrunk.settings["model.layer_types"].size() == 1);
}

TEST_CASE("a layer with a window stays when layers go") {
  const CaseSettings large = {{"model.family", "qwen2"},
                              {"model.num_hidden_layers", 4},
                              {"model.use_sliding_window", true},
                              {"model.max_window_layers", 2}};
  const auto rule = [](const CaseSettings& one) {
    return setting_of(one, "model.use_sliding_window") == true &&
           one.contains("model.max_window_layers") &&
           size(one, "model.max_window_layers") < size(one, "model.num_hidden_layers");
  };
  const Shrunk shrunk = shrink_case(large, "wrong", fails_where(rule), [] { return true; });
  CHECK(shrunk.settings["model.num_hidden_layers"] == 1);
  CHECK(shrunk.settings["model.max_window_layers"] == 0);
}

TEST_CASE("an axis goes with the explanation that names it, and from there on the new one counts") {
  const CaseSettings large = {{"parallel.tensor_parallel_size", 3},
                              {"parallel.data_parallel_size", 2},
                              {"run.steps", 2},
                              {"model.num_hidden_layers", 2}};
  int64_t layers_on_one_rank = 0;
  const Signatures run = [&](const std::vector<CaseSettings>& cases) {
    std::vector<std::string> signatures;
    for (const CaseSettings& one : cases) {
      const bool of_axis = size(one, "parallel.data_parallel_size") > 1;
      const bool wrong =
          size(one, "parallel.tensor_parallel_size") > 1 && size(one, "run.steps") > 1;
      const char* cause = of_axis ? ": the sum over dp" : ": every element is # x golden";
      signatures.push_back(wrong ? std::string("mismatch values loss") + cause : "");
      if (!of_axis) layers_on_one_rank = size(one, "model.num_hidden_layers");
    }
    return signatures;
  };
  const Shrunk shrunk =
      shrink_case(large, "mismatch values loss: the sum over dp", run, [] { return true; });
  CHECK(setting_of(shrunk.settings, "parallel.data_parallel_size") != 2);
  CHECK(shrunk.settings["parallel.tensor_parallel_size"] == 2);
  CHECK(shrunk.settings["run.steps"] == 2);
  CHECK(layers_on_one_rank == 1);
}

TEST_CASE("without any axis, faults and stragglers are on the one rank") {
  const CaseSettings large = {
      {"parallel.tensor_parallel_size", 2},
      {"parallel.data_parallel_size", 2},
      {"faults", {{{"kind", "kill"}, {"rank", 3}}, {{"kind", "hang"}, {"rank", 1}}}},
      {"world.stragglers", {{{"rank", 3}, {"compute", 2.0}}, {{"rank", 2}, {"compute", 4.0}}}}};
  const CaseSettings smaller = edited(large, edits_without_axes(large).front());
  REQUIRE(smaller["faults"].size() == 2);
  CHECK(smaller["faults"][0]["rank"] == 0);
  CHECK(smaller["faults"][1]["rank"] == 0);
  // A rank is a straggler once.
  CHECK(smaller["world.stragglers"] == json::parse(R"([{"rank": 0, "compute": 2.0}])"));
}

TEST_CASE("settings that only fail together stay together") {
  const auto rule = [](const CaseSettings& one) {
    const bool more_steps = size(one, "run.steps") >= 2;
    return more_steps && setting_of(one, "data.lengths").is_array() &&
           one["data.lengths"].size() >= 2 && one.contains("world.digests");
  };
  const Shrunk shrunk = shrink_case(kLarge, "wrong", fails_where(rule), [] { return true; });
  CHECK(shrunk.settings["run.steps"] == 2);
  CHECK(shrunk.settings["data.lengths"].size() == 2);
  CHECK(shrunk.settings.contains("world.digests"));
  CHECK_FALSE(shrunk.settings.contains("parallel.tensor_parallel_size"));
}

TEST_CASE("stages and their attributes are removed, and faults stay on ranks of the world") {
  const CaseSettings policy = {
      {"workload", "policy"},
      {"parallel.tensor_parallel_size", 4},
      {"run.stages",
       {{{"do", "score"}}, {{"do", "train"}, {"train_micro_batch_size", 2}}, {{"do", "save"}}}},
      {"faults", {{{"kind", "kill"}, {"rank", 3}, {"label", "loss"}}}}};
  const auto rule = [](const CaseSettings& one) {
    return one.contains("faults") && one.contains("run.stages") &&
           one["run.stages"].dump().find("train") != std::string::npos;
  };
  const Shrunk shrunk = shrink_case(policy, "wrong", fails_where(rule), [] { return true; });
  CHECK(shrunk.settings["run.stages"].size() == 1);
  CHECK(shrunk.settings["run.stages"][0].value("train_micro_batch_size", 0) == 0);
  CHECK(shrunk.settings["faults"][0]["rank"] == 0);
  CHECK_FALSE(shrunk.settings.contains("parallel.tensor_parallel_size"));
}

TEST_CASE("another failure is not the same failure, and the deadline ends the search") {
  const auto otherwise = [](const std::vector<CaseSettings>& cases) {
    return std::vector<std::string>(cases.size(), "another");
  };
  const Shrunk kept = shrink_case(kLarge, "wrong", otherwise, [] { return true; });
  CHECK(kept.settings == kLarge);
  CHECK(kept.in_time);
  const auto always = fails_where([](const CaseSettings&) { return true; });
  const Shrunk late = shrink_case(kLarge, "wrong", always, [] { return false; });
  CHECK(late.settings == kLarge);
  CHECK_FALSE(late.in_time);
}

TEST_CASE("numbers of a registered workload's options become smaller, also in lists") {
  const CaseSettings mapping = {
      {"workload", "mapping"},
      {"options",
       {{"shape", {23, 18}}, {"ranks", 4}, {"uneven", true}, {"mapping", "all_gather"}}}};
  std::set<std::string> said;
  for (const Edit& edit : smaller_cases(mapping)) {
    said.insert(edit.what);
    CHECK(size_of(edited(mapping, edit)) < size_of(mapping));
  }
  CHECK(said.count("options/shape/1: 9") == 1);
  CHECK(said.count("options/shape/0: 22") == 1);
  CHECK(said.count("options/ranks: 2") == 1);
}

TEST_CASE("experts of a config become fewer, and their ranks go with an axis") {
  const CaseSettings experts = {{"model.family", "qwen3_moe"},
                                {"model.config", {{"num_experts", 8}, {"num_experts_per_tok", 2}}},
                                {"parallel.data_parallel_size", 4},
                                {"parallel.expert_parallel_size", 4}};
  std::set<std::string> said;
  for (const Edit& edit : smaller_cases(experts)) said.insert(edit.what);
  CHECK(said.count("model.config/num_experts: 4") == 1);
  CHECK(said.count("parallel.expert_parallel_size: 2") == 1);
  bool without_ep = false;
  for (const Edit& edit : edits_without_axes(experts)) {
    const CaseSettings left = edited(experts, edit);
    without_ep = without_ep || (size(left, "parallel.expert_parallel_size") == 1 &&
                                size(left, "parallel.data_parallel_size") == 4);
    CHECK(check_settings(left, "t/experts.yaml", {}).spec.has_value());
  }
  CHECK(without_ep);
}

TEST_CASE("every edit makes the case smaller") {
  for (const Edit& edit : smaller_cases(kLarge)) {
    INFO(edit.what);
    CHECK(size_of(edited(kLarge, edit)) < size_of(kLarge));
  }
}

TEST_CASE("a signature has no numbers, layers or ranks") {
  CaseResult result;
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kValues;
  result.divergence.emplace();
  result.divergence->tensor = "grad.model.layers.3.mlp.down_proj.weight";
  result.divergence->pattern = "every element is 4.00 x golden on ranks 0, 1, 2";
  CaseResult smaller = result;
  smaller.divergence->tensor = "grad.model.layers.0.mlp.down_proj.weight";
  smaller.divergence->pattern = "every element is 2.00 x golden on ranks 0, 1";
  CHECK(failure_signature(result) == failure_signature(smaller));
  for (const char* holders :
       {"on all ranks", "on the one rank", "on rank 0 only", "on rank 0 only (tp 0)",
        "on ranks 4, 5, 6, 7", "on ranks 0 and 1 (tp 0)"}) {
    const std::string by = " are wrong {}, by at most 1.6 (0.5 of the tensor's scale)";
    result.divergence->pattern = "8 of 8 elements" + fmt::format(fmt::runtime(by), holders);
    smaller.divergence->pattern = "4 of 4 elements" + fmt::format(fmt::runtime(by), "on rank 1");
    CHECK(failure_signature(result) == failure_signature(smaller));
  }
  CaseResult other = smaller;
  other.divergence->pattern = "the shards of ranks 0 and 1 are exchanged";
  CHECK(failure_signature(other) != failure_signature(smaller));
  CHECK(without_cause(failure_signature(other)) == without_cause(failure_signature(smaller)));
  other = smaller;
  other.divergence->tensor = "grad.model.norm.weight";
  CHECK(without_cause(failure_signature(other)) != without_cause(failure_signature(smaller)));
  CHECK(failure_signature(other) != failure_signature(smaller));
  other.verdict = Verdict::kMatch;
  CHECK(failure_signature(other).empty());
}

TEST_CASE("what ranks say is the same in a smaller world, where all of them say it") {
  const auto says = [](const std::string& message) {
    CaseResult result;
    result.verdict = Verdict::kFailed;
    result.kind = ResultKind::kThrew;
    result.message = message;
    return failure_signature(result);
  };
  const std::string all = says("all_gather tp[0,1] 'k_proj': rank 1 has size 3; give every member");
  CHECK(says("ranks 4, 5, 6: all_gather tp[4,5,6] 'k_proj': rank 6 has size 7; give") == all);
  CHECK(
      says("ranks 0, 1, 2, 3, 4, 5, 6, 7 and 5 more: all_gather tp[0,1] 'k_proj': rank 9 has size "
           "3; give") == all);
  CHECK(says("rank 10: all_gather tp[8,9,10] 'v_proj': rank 10 has size 7\nrank 9: another") ==
        all);
  CHECK(says("rank 10: all_gather tp[8,9,10] 'k_proj': rank 10 has no sizes; give") != all);
  CHECK(says("rank 10: reduce_scatter tp[8,9,10] 'k_proj': rank 10 has size 7; give") != all);
  CHECK(says("ranks 0, 1: cannot reshape") != all);
}

TEST_CASE("a failure of calls is told from another one by its axis and what is wrong there") {
  const auto said = [](ResultKind kind, const std::string& message) {
    CaseResult result;
    result.verdict = Verdict::kFailed;
    result.kind = kind;
    result.message = message;
    return failure_signature(result);
  };
  const auto of_call = [&](const std::string& call, const std::string& what) {
    return said(ResultKind::kDisagreement, "rank 4: ranks 4 and 5 disagree on " + call + ": " +
                                               what + ". Rank 4: all_reduce(sum) tp[4,5] ..");
  };
  const std::string label = of_call("call 4 of tp[4,5]", "label 'a forward' against 'b forward'");
  CHECK(of_call("call 1 of tp[0,1]", "label 'c forward' against 'a forward'") == label);
  CHECK(of_call("call 1 of dp[0,1]", "label 'c forward' against 'a forward'") != label);
  const std::string ops = of_call("call 1 of tp[0,1]", "reduce op avg against sum");
  CHECK(ops != label);
  CHECK(of_call("call 7 of tp[2,3]", "reduce op avg against sum") == ops);
  const auto digest = [&](const std::string& call) {
    return said(ResultKind::kDigest, "rank 2 holds another result of " + call + " than rank 0");
  };
  const std::string sum = digest("all_reduce(avg) dp[0,2] [3624] float64 'grad.w' (call 1 of dp)");
  CHECK(digest("all_reduce(avg) dp[1,3] [24] float64 'grad.v' (call 3 of dp)") == sum);
  CHECK(digest("all_reduce(sum) tp[0,1] [24] float64 'grad.v' (call 3 of tp)") != sum);
}

}  // namespace shardproof::sim::explore
