#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tensor/safetensors.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/judge/judged_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

// A golden of one step, and a folder for result files.
struct ResultCase {
  ResultCase() {
    GoldenRecorder recorder(true);
    at::Tensor logprobs = numbered({2, 3});
    logprobs.select(1, 0).zero_();
    recorder.observe(seen("logprobs", logprobs, Phase::kForward));
    recorder.observe(seen("x.output", numbered({2, 3, 4}), Phase::kForward));
    recorder.observe(seen("loss", numbered({}, 2), Phase::kForward));
    recorder.observe(seen("grad.w", numbered({4, 3}, 3)));
    recorder.observe(seen("grad_norm", numbered({}, 4)));
    recorder.observe(seen("param.w", numbered({4, 3}, 5)));
    recorder.write(file.fd(), {});
    right = recorder.expected_names(1);
    spec = spec_of(2, 2);
    spec.steps = 1;
    spec.file = "cases/a";
  }

  FileJudgement judgement(const NamedTensors& tensors) {
    const std::string path = folder.path() + "/result.safetensors";
    write_safetensors(path, tensors);
    return judge_result_file(spec, file.fd(), path);
  }
  CaseResult judged(const NamedTensors& tensors) { return judgement(tensors).result; }
  NamedTensors with(const std::string& name, const std::function<at::Tensor(at::Tensor)>& f) {
    NamedTensors changed = right;
    for (auto& [key, tensor] : changed) {
      if (key == name) tensor = f(tensor.clone());
    }
    return changed;
  }

  MemoryFile file;
  ScratchFolder folder;
  NamedTensors right;
  CaseSpec spec;
};

}  // namespace

TEST_CASE("a right result file matches under every name", "[result_file]") {
  ResultCase made;
  std::vector<std::string> names;
  for (const auto& [name, tensor] : made.right) names.push_back(name);
  CHECK(names == std::vector<std::string>{"logprobs", "loss", "step1.loss", "grad.w", "grad_norm",
                                          "step1.grad_norm", "step1.param.w"});
  const CaseResult result = made.judged(made.right);
  CHECK(result.verdict == Verdict::kMatch);
  CHECK(result.message.empty());
}

TEST_CASE("the replay of a judged file can be pasted into a shell", "[result_file]") {
  ResultCase made;
  made.spec.file = "cases/it's a";
  made.spec.precision = Precision::kFloat32;
  const CaseResult result = made.judged(made.with("grad.w", [](at::Tensor t) { return -t; }));
  CHECK(result.replay.find("shardproof judge 'cases/it'\\''s a' ") == 0);
  CHECK(result.replay.find(" --precision float32") != std::string::npos);
}

TEST_CASE("a wrong value in a result file is found by the float64 rule", "[result_file]") {
  ResultCase made;
  const CaseResult result = made.judged(made.with("grad.w", [](at::Tensor t) {
    t[2][1] += 1e-8;
    return t;
  }));
  CHECK(result.verdict == Verdict::kMismatch);
  CHECK(result.divergence->tensor == "grad.w");
  CHECK(result.divergence->worst.worst_global_index == std::vector<int64_t>{2, 1});
  CHECK(result.replay.find("shardproof judge cases/a ") == 0);
  CHECK(result.replay.find("--precision") == std::string::npos);
  CHECK(made.judged(made.with("step1.loss", [](at::Tensor t) { return t + 1; })).verdict ==
        Verdict::kMismatch);
  CHECK(made.judged(made.with("logprobs",
                              [](at::Tensor t) {
                                t[1][0] = 1e-13;
                                return t;
                              }))
            .verdict == Verdict::kMismatch);
  CHECK(made.judged(made.with("step1.param.w", [](at::Tensor t) { return t * NAN; })).verdict ==
        Verdict::kMismatch);
}

TEST_CASE("tensors that a result file lacks are counted and named, the rest is judged",
          "[result_file]") {
  ResultCase made;
  const FileJudgement some = made.judgement({made.right[0], made.right[3]});
  CHECK(some.result.verdict == Verdict::kMatch);
  CHECK(some.demanded == 5);
  CHECK(some.lacking == std::vector<std::string>{"loss", "grad_norm", "step1.param.w"});
  CHECK(partial_line(some, "FILE", true) ==
        "2 of 5 tensors were judged: FILE does not hold loss, grad_norm, step1.param.w\n");
  CHECK_THROWS_WITH(partial_line(some, "FILE", false), Catch::Contains("add --allow-partial"));
  NamedTensors once = made.right;  // "loss" and "step1.loss" name one tensor
  std::erase_if(once, [](const auto& named) { return named.first == "loss"; });
  CHECK(made.judgement(once).lacking.empty());
  CHECK(partial_line(made.judgement(once), "FILE", false).empty());
}

TEST_CASE("what is no result of this case is bad input with the nearest name", "[result_file]") {
  ResultCase made;
  const auto message = [&](const NamedTensors& tensors) {
    const CaseResult result = made.judged(tensors);
    CHECK(result.verdict == Verdict::kBadInput);
    return result.message;
  };
  CHECK_THAT(message({{"grad.v", numbered({4, 3})}}),
             Catch::Contains("'grad.v'") && Catch::Contains("did you mean 'grad.w'?"));
  CHECK_THAT(message({{"grad.w", numbered({2, 3})}}),
             Catch::Contains("[2, 3]") && Catch::Contains("[4, 3]"));
  CHECK_THAT(message({{"grad.w", at::zeros({4, 3}, at::kLong)}}),
             Catch::Contains("grad.w is int64, the golden is float64"));
  CHECK_FALSE(message({}).empty());
  CHECK(judge_result_file(made.spec, made.file.fd(), "/nowhere").result.verdict ==
        Verdict::kBadInput);
}

TEST_CASE("a float32 file is judged in float32 only when the case is", "[result_file]") {
  ResultCase made;
  NamedTensors narrow = made.right;
  for (auto& [name, tensor] : narrow) tensor = tensor.to(at::kFloat);
  const CaseResult result = made.judged(narrow);
  CHECK(result.verdict == Verdict::kMismatch);
  CHECK_THAT(result.message, Catch::Contains("float32 tensor in a float64 run"));
  made.spec.precision = Precision::kFloat32;
  CHECK(made.judged(narrow).verdict == Verdict::kMatch);
}

TEST_CASE("scalars may be written as [1]", "[result_file]") {
  ResultCase made;
  CHECK(made.judged(made.with("loss", [](at::Tensor t) { return t.view({1}); })).verdict ==
        Verdict::kMatch);
}
