// A run's folder is complete, and each of its files is readable.
#include "sim/report/run_folder.h"

#include <ATen/ATen.h>

#include <boost/property_tree/ptree.hpp>
#include <boost/property_tree/xml_parser.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "sim/report/earlier_run.h"
#include "sim/report/results_json.h"
#include "tensor/safetensors.h"
#include "tests/support/said_by.h"
#include "tests/support/scratch_folder.h"
#include "tests/unit/report/example_results.h"

using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using namespace shardproof::sim::report;
using nlohmann::json;
using shardproof::Error;
using shardproof::ErrorKind;
using shardproof::SafetensorsFile;

namespace {

namespace fs = std::filesystem;

// A new folder, which is the current one until the scope ends.
class InTemporaryFolder {
 public:
  InTemporaryFolder() { fs::current_path(folder_.path()); }
  ~InTemporaryFolder() { fs::current_path(before_); }

 private:
  ScratchFolder folder_;
  fs::path before_ = fs::current_path();
};

std::string text_of(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  REQUIRE(stream);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// Writes the folder "out", as a run with --out does.
fs::path run_folder(const std::vector<CaseResult>& results, const RunInfo& info) {
  write_run_files(create_run_folder("out"), results, info);
  return "out";
}

std::vector<CaseResult> examples() {
  return {example_match(), example_mismatch(), example_death()};
}

RunInfo example_info() {
  RunInfo info;
  info.command = "./shardproof run \"x\" \x03";
  info.started = "2026-01-31T12:00:00Z";
  info.exit_status = 3;
  info.skipped.push_back(example_spec("nccl/llama", 1, 2));
  info.skipped.back().skip = "no GPU & no <driver>";
  info.files["faults/kill"] = {"extra.safetensors"};
  return info;
}

}  // namespace

TEST_CASE("results.json says for every case how it ended, with hostile text and numbers",
          "[report]") {
  const InTemporaryFolder here;
  const std::string text = text_of(run_folder(examples(), example_info()) / "results.json");
  const json results = json::parse(text);
  CHECK(results["format"] == kResultsFormat);
  CHECK(results["totals"]["match"] == 1);
  CHECK(results["totals"]["failed"] == 1);
  CHECK(results["totals"]["unexpected"] == 2);
  CHECK(results["totals"]["skipped"] == 1);
  CHECK(results["skipped"][0]["reason"] == "no GPU & no <driver>");
  CHECK(results["run"]["exit_status"] == 3);

  const json& match = results["cases"][0];
  CHECK(match["name"] == "tp/llama_tp2");
  CHECK(match["mesh"]["text"] == "tp=2");
  CHECK(match["divergence"].is_null());
  CHECK(match["replay_file"].is_null());
  CHECK(match["ranks"][1]["coordinates"]["tp"] == 1);
  CHECK(match["ranks"][1]["calls"] == 2);

  const json& mismatch = results["cases"][1];
  CHECK(mismatch["worst_ratio"] == "inf");
  CHECK(mismatch["divergence"]["tensor"] == "grad.w");
  CHECK(mismatch["divergence"]["worst"]["actual_value"] == "-inf");
  CHECK(mismatch["ranks"][0]["metrics"]["loss"] == "nan");
  CHECK(mismatch["ranks"][0]["metrics"]["norms"][1] == "inf");
  CHECK(mismatch["message"].get<std::string>().find("second line") != std::string::npos);
  CHECK(mismatch["files"][0].get<std::string>().starts_with("tensors/001-"));

  const json& death = results["cases"][2];
  CHECK(death["ranks"][1]["ending"] == "died");
  CHECK(death["ranks"][1]["last_call"] == "all_reduce dp x");
  CHECK(death["ranks"][1]["printed"].get<std::string>().starts_with("loading\nNCCL <warn> no "));
  CHECK_FALSE(death["ranks"][0].contains("printed"));
  CHECK(death["files"] == json{"extra.safetensors"});
  CHECK(std::count(text.begin(), text.end(), '\n') == 10);  // one line per case
}

TEST_CASE("tensors are gathered over ranks in the golden's order", "[report]") {
  auto result = example_match();
  result.reports[1].rows.push_back(example_row("grad.b", 1, 1, 0.7));  // a second microbatch
  result.reports[0].rows.insert(result.reports[0].rows.begin(), example_row("unknown", 0, -1, 2));
  const json tensors = json::parse(results_entry(0, result, {}))["tensors"];
  REQUIRE(tensors.size() == 3);
  CHECK(tensors[0]["name"] == "grad.a");
  CHECK(tensors[0]["ratio"] == json{0.031, 0.031});
  CHECK(tensors[1]["name"] == "grad.b");
  CHECK(tensors[1]["ratio"] == json{0.01, 0.7});
  CHECK(tensors[1]["worst_rank"] == 1);
  CHECK(tensors[1]["ok"] == true);
  CHECK(tensors[2]["name"] == "unknown");
  CHECK(tensors[2]["ratio"] == json{2.0, nullptr});
  CHECK(tensors[2]["ok"] == false);
  CHECK(tensors[2]["wrong"].size() == 1);
}

TEST_CASE("a NaN is worse than any number in the gathered table", "[report]") {
  auto result = example_match();
  result.reports[0].rows = {example_row("grad.a", 0, 0, std::nan("")),
                            example_row("grad.a", 0, 0, 5)};
  result.reports[1].rows = {example_row("grad.a", 1, 0, 9)};
  const json tensor = json::parse(results_entry(0, result, {}))["tensors"][0];
  CHECK(tensor["ratio"] == json{"nan", 9.0});
  CHECK(tensor["worst_ratio"] == "nan");
  CHECK(tensor["worst_rank"] == 0);
}

TEST_CASE("junit.xml is well-formed whatever the texts hold, and counts as CI systems do",
          "[report]") {
  const InTemporaryFolder here;
  boost::property_tree::ptree tree;
  std::stringstream stream(text_of(run_folder(examples(), example_info()) / "junit.xml"));
  REQUIRE_NOTHROW(boost::property_tree::read_xml(stream, tree));
  const auto& all = tree.get_child("testsuites");
  CHECK(all.get<int>("<xmlattr>.tests") == 4);
  CHECK(all.get<int>("<xmlattr>.failures") == 1);
  CHECK(all.get<int>("<xmlattr>.errors") == 1);
  CHECK(all.get<int>("<xmlattr>.skipped") == 1);
  std::vector<std::string> outcomes;
  for (const auto& [tag, suite] : all) {
    if (tag != "testsuite") continue;
    for (const auto& [case_tag, entry] : suite) {
      if (case_tag != "testcase") continue;
      std::string outcome = "passed";
      for (const auto& [name, child] : entry) {
        if (name == "failure" || name == "error" || name == "skipped") outcome = name;
        if (name == "failure") CHECK(child.get<std::string>("<xmlattr>.type") == "mismatch.values");
        if (name == "skipped") {
          CHECK(child.get<std::string>("<xmlattr>.message") == "no GPU & no <driver>");
        }
      }
      outcomes.push_back(outcome);
    }
  }
  CHECK(outcomes == std::vector<std::string>{"passed", "failure", "error", "skipped"});
}

TEST_CASE("an expected refusal passes, an expected mismatch that matched fails", "[report]") {
  CaseResult refused = example_match();
  refused.verdict = Verdict::kRefused;
  CaseResult matched = example_match();
  matched.as_expected = false;
  matched.unexpected = "expected mismatch, got match";
  const std::string xml = junit_xml({junit_part(refused), junit_part(matched)}, {});
  CHECK(xml.find("failures=\"1\" errors=\"0\"") != std::string::npos);
  CHECK(xml.find("expected mismatch, got match") != std::string::npos);
}

TEST_CASE("the timeline starts at 0 and leaves out what has no time", "[report]") {
  const InTemporaryFolder here;
  const json trace = json::parse(text_of(run_folder(examples(), {}) / "timeline.json"));
  std::vector<json> stretches;
  for (const auto& event : trace["traceEvents"]) {
    if (event["ph"] == "X") stretches.push_back(event);
  }
  REQUIRE(stretches.size() == 2);
  CHECK(stretches[0]["ts"] == 0.0);
  CHECK(stretches[1]["ts"] == 10.0);
  CHECK(stretches[1]["dur"] == 7.5);
  CHECK(stretches[1]["tid"] == 1);
  CHECK(stretches[1]["cat"] == "communication");
}

TEST_CASE("a run's folder holds every file that results.json names", "[report]") {
  const InTemporaryFolder here;
  const fs::path folder = run_folder(examples(), example_info());
  const json results = json::parse(text_of(folder / "results.json"));
  for (const auto& entry : results["cases"]) {
    for (const auto& rank : entry["ranks"])
      CHECK(fs::exists(folder / rank["log"].get<std::string>()));
    if (!entry["replay_file"].is_null()) {
      const json replay = json::parse(text_of(folder / entry["replay_file"].get<std::string>()));
      CHECK(case_spec_from_json(replay).parallel.world_size() == entry["world_size"]);
    }
  }
  CHECK(fs::exists(folder / "junit.xml"));
  CHECK(json::parse(text_of(folder / "timeline.json")).contains("traceEvents"));
  for (const auto& file : fs::recursive_directory_iterator(folder)) {
    CHECK(file.path().extension() != ".part");
  }
}

TEST_CASE("a rank's log says how it ended and lists its calls", "[report]") {
  const InTemporaryFolder here;
  const fs::path folder = run_folder(examples(), {});
  const std::string match = text_of(folder / "logs/000-tp.llama_tp2/rank1.log");
  CHECK(match.find("rank    1 of 2 tp=1") != std::string::npos);
  CHECK(match.find("     0  all_reduce(sum) tp[0,1] [4] float64 a") != std::string::npos);
  const std::string dead = text_of(folder / "logs/002-faults.kill/rank1.log");
  CHECK(dead.find("ending  died") != std::string::npos);
  CHECK(dead.find("last call entered: all_reduce dp x") != std::string::npos);
  CHECK(dead.find("sent no report") != std::string::npos);
  CHECK(dead.find("its process printed\nloading\nNCCL <warn>") != std::string::npos);
}

TEST_CASE("failing tensors are a safetensors file with the place of each element", "[report]") {
  const InTemporaryFolder here;
  const fs::path folder = run_folder(examples(), {});
  const auto name = json::parse(text_of(folder / "results.json"))["cases"][1]["files"][0];
  const auto file = SafetensorsFile::open((folder / name.get<std::string>()).string());
  const Piece piece = example_piece();
  const at::Tensor golden = file.get("rank1/grad.w/golden"),
                   actual = file.get("rank1/grad.w/actual");
  CHECK(golden.sizes().vec() == std::vector<int64_t>{2, 3});
  CHECK(golden.equal(at::tensor(piece.golden, at::kDouble).view({2, 3})));
  CHECK(std::isnan(actual[1][1].item<double>()));
  CHECK(file.get("rank1/grad.w/index")
            .equal(at::tensor({3, 1, -1, 7, 5, -1}, at::kLong).view({2, 3})));
  CHECK(file.metadata().at("rank1/grad.w").find("step 1") != std::string::npos);
}

TEST_CASE("runs without a name get numbered folders, and latest is the last one", "[report]") {
  const InTemporaryFolder here;
  const std::string first = create_run_folder("");
  const std::string second = create_run_folder("");
  CHECK(first != second);
  CHECK(fs::path(first).parent_path() == "runs");
  CHECK(fs::equivalent("runs/latest", second));
  CHECK(fs::is_symlink("runs/latest"));
}

TEST_CASE("a folder that cannot be made is a sentence", "[report]") {
  const InTemporaryFolder here;
  std::ofstream("taken") << "a file";
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(create_run_folder("taken"),
                    Contains("taken") && Contains("name a folder that can be written"));
  CHECK_THROWS_WITH(create_run_folder("taken/below"), Contains("cannot write"));
  CHECK_THROWS_WITH(create_run_folder("/proc/shardproof"), Contains("cannot write"));
  CHECK_THROWS_AS(write_run_files("not/there", {}, {}), Error);
}

TEST_CASE("results of an earlier run in the same folder do not survive", "[report]") {
  const InTemporaryFolder here;
  run_folder(examples(), {});
  run_folder({example_match()}, {});
  CHECK(json::parse(text_of("out/results.json"))["cases"].size() == 1);
}

TEST_CASE("unexpected cases are read back, and what is no run's folder is a sentence", "[report]") {
  const InTemporaryFolder here;
  run_folder(examples(), {});
  const auto cases = unexpected_cases("out", false).cases;
  REQUIRE(cases.size() == 2);
  CHECK(cases[1].name == "faults/kill");
  const auto refusal = [](const std::string& content) {
    fs::create_directories("bad");
    std::ofstream("bad/results.json") << content;
    return shardproof::tests::told_by(ErrorKind::kBadInput, [] { unexpected_cases("bad", false); });
  };
  using Catch::Matchers::Contains;
  CHECK_THROWS_WITH(unexpected_cases("nowhere", false), Contains("does not exist"));
  CHECK_THAT(refusal("{"), Contains("not JSON"));
  CHECK_THAT(refusal("[]"), Contains("a JSON array"));
  CHECK_THAT(refusal("{}"), Contains("format"));
  CHECK_THAT(refusal(R"({"format": 3})"), Contains("format"));
  CHECK_THAT(refusal(R"({"format": "shardproof-results/1"})"), Contains("not whole"));
  CHECK_THAT(refusal(R"({"format": "shardproof-results/1", "cases": [{}]})"),
             Contains("not whole"));
  CHECK_THAT(refusal(R"({"format": "shardproof-results/1", "cases": [{"as_expected": "no"}]})"),
             Contains("not whole"));
}

TEST_CASE("a folder of other files is used only by force", "[report]") {
  const InTemporaryFolder here;
  fs::create_directory("mine");
  std::ofstream("mine/notes") << "mine";
  CHECK_THROWS_WITH(create_run_folder("mine"), Catch::Matchers::Contains("not of a run"));
  CHECK(create_run_folder("mine", /*force=*/true) == "mine");
  write_run_files("mine", {example_match()}, {});
  CHECK(text_of("mine/notes") == "mine");
  CHECK_THROWS_WITH(create_run_folder("mine"), Catch::Matchers::Contains("not of a run"));
  fs::remove("mine/notes");
  CHECK(create_run_folder("mine") == "mine");
}

TEST_CASE("a run without cases writes a whole folder too", "[report]") {
  const InTemporaryFolder here;
  run_folder({}, {});
  CHECK(json::parse(text_of("out/results.json"))["cases"].empty());
  CHECK(json::parse(text_of("out/timeline.json"))["traceEvents"].empty());
}
