// The text of a run: lines, a status that is rewritten, totals.
#include "sim/report/summary.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "sim/report/results_json.h"
#include "tests/unit/report/example_results.h"

using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using namespace shardproof::sim::report;
using Catch::Matchers::Contains;

namespace {

std::string progress_of(bool terminal) {
  std::ostringstream out;
  {
    Progress progress(out, {.terminal = terminal, .color = terminal}, 3);
    progress.started("tp/llama_tp2");
    progress.started("faults/kill");
    progress.finished(example_match());
    progress.note("a note");
    progress.finished(example_death());
  }
  return out.str();
}

CaseSpec skipped(const std::string& name, const std::string& reason) {
  CaseSpec spec = example_spec(name, 1, 1);
  spec.skip = reason;
  return spec;
}

}  // namespace

TEST_CASE("elsewhere than on a terminal progress is plain lines", "[summary]") {
  const std::string text = progress_of(false);
  CHECK(text.find('\033') == std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK_THAT(text, Contains("match        0.125 s  tp/llama_tp2   2 tensors, 96 elements, at most "
                            "3.1% of the allowance"));
  CHECK_THAT(text, Contains("\na note\n"));
  CHECK_THAT(text, Contains("rank 1 died"));
}

TEST_CASE("on a terminal a status line is rewritten and cleared at the end", "[summary]") {
  const std::string text = progress_of(true);
  CHECK_THAT(text, Contains("[0/3] running tp/llama_tp2"));
  CHECK_THAT(text, Contains("[1/3] about 0 s left, running faults/kill"));
  size_t drawn = 0, cleared = 0;
  for (size_t at = text.find("running"); at != std::string::npos; at = text.find("running", at + 1))
    ++drawn;
  for (size_t at = text.find("\r\033[K"); at != std::string::npos;
       at = text.find("\r\033[K", at + 1))
    ++cleared;
  CHECK(drawn == cleared);
}

TEST_CASE("a case that was refused as expected says so on its line", "[summary]") {
  CaseResult result = example_match();
  result.verdict = Verdict::kRefused;
  result.message = "8 heads do not divide by tp=3\nsecond line";
  CHECK_THAT(case_line(result, false), Contains("refused") && Contains("as expected: 8 heads"));
  CHECK(case_line(result, false).find('\n') == std::string::npos);
}

TEST_CASE("a warning is told with its ranks, below the line of a case that matched", "[summary]") {
  CaseResult result = example_match();
  result.reports.clear();
  for (const int64_t rank : {0, 1, 3}) {
    RankReport report;
    report.rank = rank;
    if (rank != 1) report.warnings = {"a generator moved", "a generator moved"};
    if (rank == 1) report.warnings = {"another"};
    result.reports.push_back(report);
  }
  CHECK(warning_lines(result) ==
        "\n             warning  ranks 0, 3: a generator moved"
        "\n             warning  rank 1: another");
  CHECK(warning_lines(example_match()).empty());
  std::ostringstream out;
  Progress(out, {}, 1).finished(result);
  CHECK_THAT(out.str(), Contains("allowance used\n             warning  ranks 0, 3: a gen"));
}

TEST_CASE("a quiet run has lines for unexpected results alone", "[summary]") {
  std::ostringstream out;
  Progress progress(out, {.quiet = true}, 2);
  progress.finished(example_match());
  CHECK(out.str().empty());
  progress.finished(example_death());
  CHECK_THAT(out.str(), Contains("faults/kill"));
}

TEST_CASE("a case is one line of JSON", "[summary]") {
  std::ostringstream out;
  Progress progress(out, {.json_lines = true}, 2);
  progress.finished(example_match());
  progress.finished(example_mismatch());
  std::istringstream lines(out.str());
  std::string line;
  REQUIRE(std::getline(lines, line));
  CHECK(nlohmann::json::parse(line)["verdict"] == "match");
  REQUIRE(std::getline(lines, line));
  const auto wrong = nlohmann::json::parse(line);
  CHECK(wrong["tensor"] == "grad.w");
  CHECK(wrong["ranks"] == std::vector<int>{1});
  CHECK(wrong["likely"] == "summed over dp twice");
  CHECK_FALSE(std::getline(lines, line));
}

// Escapes of https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
TEST_CASE("an annotation is one line with its properties escaped", "[summary]") {
  CaseResult result = example_death();
  result.spec.file = "a:b,c.yaml";
  result.spec.line = 7;
  result.unexpected = "50% died: now";
  CHECK(
      annotation(result) ==
      "::error file=a%3Ab%2Cc.yaml,line=7,title=faults/kill failed::50%25 died: now: rank 1 died: "
      "ended by signal 9");
  result = example_mismatch();
  CHECK(annotation(result).find('\n') == std::string::npos);
  result.unexpected = "expected match, got mismatch (values)";
  result.divergence->ranks = {1, 3};
  result.divergence->pattern = "5 of 6 elements are wrong";
  CHECK(finding_line(result) ==
        "expected match, got mismatch (values): grad.w on ranks 1, 3: 5 of 6 elements are wrong; "
        "likely summed over dp twice");
  CHECK_THAT(annotation(result), Contains("::" + finding_line(result)));
  CHECK_THAT(junit_part(result), Contains(finding_line(result)));
}

TEST_CASE("the slowest cases come first", "[summary]") {
  std::vector<CaseResult> results = {example_match(), example_mismatch(), example_death()};
  results[2].seconds = 3;
  results[1].seconds = 2;
  const std::string text = slowest_text(results, 2);
  CHECK_THAT(text, Contains("3.000 s  faults/kill"));
  CHECK(text.find("faults/kill") < text.find("hostile"));
  CHECK(text.find("llama_tp2") == std::string::npos);
  CHECK(slowest_text({}, 2).empty());
}

TEST_CASE("the summary counts verdicts, lists what was unexpected and groups skips", "[summary]") {
  const std::vector<CaseResult> results = {example_match(), example_mismatch(), example_death()};
  const std::vector<CaseSpec> skips = {skipped("nccl/a", "no GPU"), skipped("nccl/b", "no GPU"),
                                       skipped("slow/c", "takes an hour")};
  const std::string text = summary_text({.results = results,
                                         .skipped = skips,
                                         .not_run = {},
                                         .seconds = 12.34,
                                         .exit_status = 3,
                                         .run_folder = "runs/x"},
                                        false);
  CHECK_THAT(
      text,
      Contains("3 cases: 1 match, 1 mismatch, 1 failed; 3 skipped   12.3 s   2 not as expected"));
  CHECK_THAT(text, Contains("./shardproof run 'x' --only \"y\""));
  CHECK_THAT(text, Contains("failed     faults/kill   rank 1 died"));
  CHECK_THAT(text, Contains("nccl/a and 1 more   no GPU"));
  CHECK_THAT(text, Contains("slow/c   takes an hour"));
  CHECK_THAT(text, Contains("results    runs/x"));
  CHECK_THAT(text, Contains("exit status 3: a world failed"));
  CHECK(text.back() == '\n');
}

TEST_CASE("a clean run ends in one line and where the results are", "[summary]") {
  const std::vector<CaseResult> results = {example_match()};
  const std::string text =
      summary_text({.results = results, .skipped = {}, .not_run = {}, .seconds = 1}, false);
  CHECK_THAT(text, Contains("1 case: 1 match   1.0 s   all as expected"));
  CHECK(text.find("exit status") == std::string::npos);
}

TEST_CASE("a run of some of the selected cases is not called whole", "[summary]") {
  const std::vector<CaseResult> results = {example_match()};
  const std::vector<CaseSpec> left = {skipped("tp/a", "the run was interrupted"),
                                      skipped("tp/b", "the run was interrupted")};
  const std::string text = summary_text(
      {.results = results, .skipped = {}, .not_run = left, .exit_status = 130, .run_folder = "r"},
      false);
  CHECK_THAT(text, Contains("1 of 3 cases: 1 match; 2 not run"));
  CHECK_THAT(text, Contains("not run    tp/a and 1 more   the run was interrupted"));
  CHECK_THAT(text, Contains("go on with shardproof run --resume r"));
  CHECK_THAT(text, Contains("(pictures: shardproof report r)"));
  CHECK(text.find("all as expected") == std::string::npos);
  const std::string nothing = summary_text({.results = {}, .skipped = left, .not_run = {}}, false);
  CHECK(nothing.find("all as expected") == std::string::npos);
}

TEST_CASE("what a precision cannot resolve is counted, and named in its case", "[summary]") {
  CaseResult result = example_match();
  result.spec.precision = shardproof::Precision::kFloat16;
  result.account.all_tensors = 3;
  result.account.unresolved = {
      {.tensor = "loss", .step = 8, .elements = 1, .reason = "rounding is 0.7 of it"}};
  CHECK_THAT(case_line(result, false),
             Contains("1 of 3 tensors not resolvable in float16 (first: loss of step 8)"));
  const std::vector<CaseResult> results = {result, example_match()};
  const std::string text =
      summary_text({.results = results, .skipped = {}, .not_run = {}, .seconds = 1}, false);
  CHECK_THAT(text, Contains("unresolved 1 tensor in 1 case"));
  CHECK_THAT(text, Contains("--no-unresolved"));
  CHECK_THAT(junit_part(result), Contains("<system-err>1 of 3 tensors not resolvable in float16"));
  const auto unresolved = nlohmann::json::parse(results_entry(0, result, {}))["unresolved"];
  CHECK(unresolved[0]["tensor"] == "loss");
  CHECK(unresolved[0]["step"] == 8);
  CHECK(unresolved[0]["reason"] == "rounding is 0.7 of it");
  CHECK(nlohmann::json::parse(results_entry(1, results[1], {}))["unresolved"].empty());
}

TEST_CASE("every exit status has its words", "[summary]") {
  for (const int status : {0, 1, 2, 3, 4, 5, 130}) CHECK(exit_status_text(status).size() > 5);
}
