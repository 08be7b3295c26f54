#include "sim/uses/recorded/answer_file.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>

#include "sim/uses/recorded/recorded_judgement.h"
#include "tensor/safetensors.h"
#include "tests/support/said_by.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using namespace shardproof::sim::recorded;
using Catch::Contains;

namespace {

// The answers of a case of three steps, as files.
struct AnswerFiles {
  AnswerFiles() : folder(std::filesystem::temp_directory_path() / "shardproof_answer_file_test") {
    std::filesystem::create_directories(folder);
    spec.steps = 3;
    spec.optimizer.lr = 0.125;
    spec.optimizer.max_norm = 0;
  }
  ~AnswerFiles() { std::filesystem::remove_all(folder); }

  std::string write(const NamedTensors& tensors, const std::string& name = "file") const {
    const std::string path = (folder / name).string();
    write_safetensors(path, tensors);
    return path;
  }
  std::string refusal(const NamedTensors& tensors) const {
    return tests::told_by(ErrorKind::kBadInput, [&] { read_answers(write(tensors), spec); });
  }
  CaseResult judged(const NamedTensors& tensors, const NamedTensors& golden) const {
    return judge_recorded_run(read_answers(write(tensors), spec),
                              read_answers(write(golden, "golden"), spec))
        .result;
  }

  std::filesystem::path folder;
  CaseSpec spec;
};

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

NamedTensors some_answers() {
  return {{"logprobs", at::tensor({0.0, -1.0, -2.0, 0.0, -0.5, 0.0}, at::kDouble).view({2, 3})},
          {"step2.loss", number(2)},
          {"grad.w", at::tensor({1.0, -2.0, 1e-9}, at::kDouble)},
          {"grad_norm", number(2)},
          {"step3.param.w", at::tensor({1.0, 2.0, 3.0}, at::kDouble)}};
}

NamedTensors with(const std::string& name, const at::Tensor& tensor) {
  NamedTensors answers = some_answers();
  for (auto& [known, value] : answers) {
    if (known == name) value = tensor;
  }
  return answers;
}

}  // namespace

TEST_CASE("a name of an answer says which tensor of which step it is", "[answers]") {
  const AnswerFiles files;
  const RecordedRun run = read_answers(files.write(some_answers()), files.spec);
  std::vector<std::string> seen;
  for (const RecordedPiece& piece : run.pieces) {
    seen.push_back(std::to_string(piece.step) + " " + phase_name(piece.phase) + " " + piece.name);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == std::vector<std::string>{"1 forward logprobs", "1 step grad.w", "1 step grad_norm",
                                         "2 forward loss", "3 step param.w"});
}

TEST_CASE("what is no answer of the case is refused by name", "[answers]") {
  const AnswerFiles files;
  for (const char* name :
       {"w", "exp_avg.w", "step0.loss", "step.loss", "step1.grad.w", "step1", "stepx.loss"}) {
    CHECK_THAT(files.refusal({{name, number(1)}}),
               Contains(std::string("'") + name + "' is not a name"));
  }
  CHECK_THAT(files.refusal({{"grad.\033[31mw", number(1)}}), Contains("is not a name"));
  CHECK_THAT(files.refusal({{"step4.loss", number(1)}}), Contains("the case has 3 steps"));
  CHECK_THAT(files.refusal({}), Contains("it holds no tensor"));
}

TEST_CASE("one number under two names has one value", "[answers]") {
  const AnswerFiles files;
  CHECK(files.refusal({{"loss", number(1)}, {"step1.loss", number(1).view({1})}}).empty());
  CHECK_THAT(files.refusal({{"loss", number(1)}, {"step1.loss", number(1.5)}}),
             Contains("loss and step1.loss are one number, and differ"));
}

TEST_CASE("answers that are right match, and each wrong one is found", "[answers]") {
  const AnswerFiles files;
  CHECK(files.judged(some_answers(), some_answers()).verdict == Verdict::kMatch);
  for (const auto& [name, value] : some_answers()) {
    const CaseResult wrong = files.judged(with(name, value * 1.001), some_answers());
    CHECK(wrong.verdict == Verdict::kMismatch);
    REQUIRE(wrong.divergence);
    CHECK_THAT(name, Catch::EndsWith(wrong.divergence->tensor));
  }
}

TEST_CASE("padding of logprobs is exactly zero", "[answers]") {
  const AnswerFiles files;
  at::Tensor logprobs = some_answers()[0].second.clone();
  logprobs[0][0] = 1e-14;
  CHECK(files.judged(with("logprobs", logprobs), some_answers()).verdict == Verdict::kMismatch);
}

// The gradients of the later steps are not in the file: the first one's allowance counts for each.
TEST_CASE("a parameter may be off by what rounding of gradients gives in all steps", "[answers]") {
  const AnswerFiles files;
  const auto moved = [&](double by) {
    at::Tensor param = some_answers()[4].second.clone();
    param[2] += by;  // its gradient is 1e-9: rounding of gradients shows in its steps
    return files.judged(with("step3.param.w", param), some_answers()).verdict;
  };
  // lr * d / (size + eps), with d = 2e-10, and sizes of 1e-9, 7.1e-10 and 5.8e-10: 2.3e-3 for each.
  CHECK(moved(6.5e-3) == Verdict::kMatch);
  CHECK(moved(7.5e-3) == Verdict::kMismatch);
}

TEST_CASE("what a file lacks is named, and what the reference lacks is refused", "[answers]") {
  const AnswerFiles files;
  NamedTensors few = some_answers();
  few.erase(few.begin() + 1, few.begin() + 3);
  const RecordedRun all = read_answers(files.write(some_answers(), "golden"), files.spec);
  const RecordedRun some = read_answers(files.write(few), files.spec);
  CHECK(lacking_answers(some, all) == std::vector<std::string>{"step2.loss", "grad.w"});
  CHECK(lacking_answers(all, some).empty());
  CHECK(judge_recorded_run(some, all).result.verdict == Verdict::kMatch);
  CHECK_NOTHROW(require_known_answers(some, all));
  CHECK_THROWS_WITH(require_known_answers(all, some), Contains("has nothing called"));
}
