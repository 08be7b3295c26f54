#include "sim/case/scenario/case_folder.h"

#include <catch2/catch.hpp>
#include <string>

#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"

using namespace shardproof;
using namespace shardproof::sim;
using tests::contains;

namespace {

struct CaseFolder : ScratchFolder {
  explicit CaseFolder(const std::string& case_json = "{}") {
    write("config.json", R"({"model_type": "llama", "hidden_size": 8})");
    write("model.safetensors", "");
    write("batch.safetensors", "");
    write("case.json", case_json);
  }
  std::string refusal() const {
    return tests::told_by(ErrorKind::kBadInput, [&] { read_case_folder(path()); });
  }
};

}  // namespace

TEST_CASE("A case folder without constants has the documented ones", "[case]") {
  const CaseFolder folder;
  const CaseSpec spec = read_case_folder(folder.path());
  CHECK(spec.loss.kind == LossKind::kNll);
  CHECK(spec.loss.clip_eps == 0.2);
  CHECK(spec.loss.kl_beta == 0.01);
  CHECK(spec.optimizer.kind == OptimizerKind::kAdamW);
  CHECK(spec.optimizer.lr == 1e-3);
  CHECK(spec.optimizer.beta1 == 0.9);
  CHECK(spec.optimizer.beta2 == 0.999);
  CHECK(spec.optimizer.eps == 1e-8);
  CHECK(spec.optimizer.weight_decay == 0.01);
  CHECK(spec.optimizer.max_norm == 1.0);
  CHECK(spec.precision == Precision::kFloat64);
  CHECK(spec.expected_file.empty());
  CHECK(spec.model["hidden_size"] == 8);
}

TEST_CASE("Only the first word of a kind counts, and other fields are text", "[case]") {
  const CaseFolder folder(R"json({"loss": {"kind": "clipped_pg (PPO, mean over tokens)", "eps": 0.1,
      "note": "any text"}, "optimizer": {"kind": "SGD without momentum", "lr": 0.5, "steps": 3,
      "max_norm": null, "foreach": "no"}, "made by": "somebody"})json");
  const CaseSpec spec = read_case_folder(folder.path());
  CHECK(spec.loss.kind == LossKind::kClippedPolicyGradient);
  CHECK(spec.loss.clip_eps == 0.1);
  CHECK(spec.optimizer.kind == OptimizerKind::kSgd);
  CHECK(spec.optimizer.lr == 0.5);
  CHECK(spec.optimizer.max_norm == 0);
  CHECK(spec.steps == 3);
}

TEST_CASE("expected.safetensors is noticed", "[case]") {
  const CaseFolder folder;
  folder.write("expected.safetensors", "");
  CHECK(contains(read_case_folder(folder.path()).expected_file, "expected.safetensors"));
}

TEST_CASE("Weights may be sharded files with an index", "[case]") {
  const CaseFolder folder;
  folder.remove("model.safetensors");
  CHECK(contains(folder.refusal(), "the case has no"));
  folder.write("model.safetensors.index.json", "{}");
  CHECK(folder.refusal().empty());
}

TEST_CASE("Each missing file is named", "[case]") {
  for (const char* name : {"config.json", "case.json", "batch.safetensors", "model.safetensors"}) {
    const CaseFolder folder;
    folder.remove(name);
    INFO(name);
    CHECK(contains(folder.refusal(), std::string("the case has no ") + folder.path() + "/" + name));
  }
  CHECK_THROWS_AS(read_case_folder("/nowhere/at/all"), Error);
}

TEST_CASE("Constants of the wrong type or range are refused by name", "[case]") {
  const auto refusal = [](const std::string& text) { return CaseFolder(text).refusal(); };
  CHECK(contains(refusal(R"({"loss": {"kind": "nnl"}})"), "did you mean nll?"));
  CHECK(contains(refusal(R"({"loss": {"kind": 3}})"), "loss.kind must be text, not 3"));
  CHECK(contains(refusal(R"({"loss": {"kind": ""}})"), "known are nll, clipped_pg"));
  CHECK(contains(refusal(R"({"loss": "nll"})"), "loss must be an object"));
  CHECK(contains(refusal(R"({"optimizer": {"lr": -1}})"), "optimizer.lr is -1; it must be from 0"));
  CHECK(contains(refusal(R"({"optimizer": {"betas": [0.9]}})"), "must be two numbers"));
  CHECK(contains(refusal(R"({"optimizer": {"betas": [0.9, 1]}})"), "optimizer.betas has 1"));
  CHECK(contains(refusal(R"({"optimizer": {"steps": 2.5}})"), "optimizer.steps is 2.5"));
}

TEST_CASE("All wrong constants are said at once, in the order of the file, each with its place",
          "[case]") {
  const CaseFolder folder(
      "{\"optimizer\": {\"steps\": 0,\n  \"lr\": \"fast\"},\n \"loss\": {\"kinds\": \"nll\"}, "
      "\"los\": {}}");
  const std::string said = folder.refusal();
  const size_t steps = said.find("case.json:1:16: optimizer.steps is 0"),
               lr = said.find("case.json:2:3: optimizer.lr must be a number, not \"fast\""),
               kind = said.find("case.json:3:11: loss.kinds is unknown"),
               los = said.find("case.json:3:28: los is unknown");
  CHECK((steps < lr && lr < kind && kind < los && los != said.npos));
  CHECK(contains(CaseFolder("{\n\t\"los\": 3}").refusal(), "los is unknown"));
  CHECK(contains(CaseFolder(R"({"optimizer": {"kind": "SGD", "momentum": "0.9"}})").refusal(),
                 "optimizer.momentum must be a number"));
}

TEST_CASE("What is no JSON object is refused with its place", "[case]") {
  const auto refusal = [](const std::string& text) { return CaseFolder(text).refusal(); };
  CHECK(contains(refusal("{\n\"loss\": {,}\n}"), "case.json:2:"));
  CHECK(contains(refusal("[1]"), "holds a JSON array"));
  CHECK(contains(refusal(""), "case.json:1:1: this is not JSON"));
  CHECK(contains(refusal(R"({"optimizer": {"lr": NaN}})"), "this is not JSON"));
  const std::string deep = "{\"a\": " + std::string(100000, '[');
  CHECK(contains(refusal(deep), "is nested more than 32 deep"));
  const std::string closed = deep + std::string(100000, ']') + "}";
  CHECK(contains(refusal(closed), "is nested more than 32 deep"));  // copying it would overflow
}
