#include "sim/report/results_json.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <chrono>
#include <ctime>
#include <map>

#include "sim/case/reference.h"
#include "sim/report/escape.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/report/virtual_time.h"

namespace shardproof::sim::report {
namespace {

using Json = nlohmann::ordered_json;

Json texts(const std::vector<std::string>& values) {
  auto out = Json::array();
  for (const auto& value : values) out.push_back(valid_utf8(value));
  return out;
}

Json mesh_json(const Mesh& mesh) {
  auto axes = Json::array();
  for (const auto& axis : mesh.axes()) axes.push_back({{"name", axis.name}, {"size", axis.size}});
  auto parts = Json::array();
  for (const MeshPart& part : mesh.parts()) {
    parts.push_back({{"name", part.name}, {"stride", part.stride}, {"size", part.size}});
  }
  return {{"axes", axes}, {"parts", parts}, {"text", mesh.describe()}};
}

Json divergence_json(const judge::Divergence& divergence) {
  return {{"tensor", valid_utf8(divergence.tensor)},
          {"phase", phase_name(divergence.phase)},
          {"step", divergence.step},
          {"kind", divergence.kind},
          {"ranks", divergence.ranks},
          {"pattern", valid_utf8(divergence.pattern)},
          {"likely", valid_utf8(divergence.likely)},
          {"collectives", texts(divergence.collectives)},
          {"last_good", valid_utf8(divergence.last_good)},
          {"worst", json_finite(judge::to_json(divergence.worst))}};
}

// The detectors that saw the error, the effects of the planted faults, and the gradients.
Json outcome_json(const judge::FaultOutcome& outcome) {
  auto detections = Json::array();
  for (const judge::Detection& seen : outcome.detections) {
    detections.push_back(
        {{"detector", seen.detector}, {"step", seen.step}, {"what", valid_utf8(seen.what)}});
  }
  auto faults = Json::array();
  for (const FaultNote& note : outcome.faults) {
    faults.push_back({{"index", note.index},
                      {"fired", note.fired},
                      {"step", note.step},
                      {"call", valid_utf8(note.call)},
                      {"effect", valid_utf8(note.effect)}});
  }
  return {{"detections", detections},
          {"faults", faults},
          {"gradients", outcome.gradients},
          {"gradients_wrong", outcome.wrong_gradients},
          {"first_gradient", valid_utf8(outcome.first_gradient)},
          {"worst_gradient", valid_utf8(outcome.worst_gradient)}};
}

Json unjudged_json(const std::vector<judge::UnjudgedTensor>& tensors) {
  auto out = Json::array();
  for (const judge::UnjudgedTensor& one : tensors) {
    out.push_back({{"tensor", valid_utf8(one.tensor)},
                   {"phase", phase_name(one.phase)},
                   {"step", one.step},
                   {"elements", one.elements},
                   {"reason", valid_utf8(one.reason)}});
  }
  return out;
}

// Elements over all ranks. A case matches only if demanded = judged + excused.
Json coverage_json(const judge::Coverage& elements) {
  Json excused = Json::object();
  for (const auto& [excuse, count] : elements.excused) excused[name_of(excuse)] = count;
  return {{"demanded", elements.demanded}, {"judged", elements.judged}, {"excused", excused}};
}

Json grounds_json(const judge::Account& account) {
  const judge::Grounds& grounds = account.grounds;
  return {{"elements", account.elements.judged},
          {"scored_tokens", grounds.scored_tokens >= 0 ? Json(grounds.scored_tokens) : Json()},
          {"trains", grounds.trains},
          {"gradients", grounds.gradients},
          {"gradients_not_zero", grounds.gradients_not_zero}};
}

Json rank_json(int64_t rank, const RankEnding* ending, const judge::RankReport* report,
               const Mesh& mesh, const std::string& log) {
  Json out = {{"rank", rank}, {"coordinates", Json::object()}};
  for (const auto& axis : mesh.axes()) {
    if (rank < mesh.world_size()) out["coordinates"][axis.name] = mesh.coordinate(axis.name, rank);
  }
  out["ending"] = ending ? ending->kind : ResultKind::kFinished;
  out["message"] = ending ? valid_utf8(ending->message) : "";
  out["last_call"] = ending ? valid_utf8(ending->last_call) : "";
  if (ending != nullptr && !ending->printed.empty()) out["printed"] = valid_utf8(ending->printed);
  if (!log.empty()) out["log"] = log;
  if (report == nullptr) return out;
  out["calls"] = report->calls.size();
  out["warnings"] = texts(report->warnings);
  out["seconds"] = json_number(report->seconds);
  out["compare_seconds"] = json_number(report->compare_seconds);
  out["peak_tensor_bytes"] = report->peak_tensor_bytes;
  out["metrics"] = json_finite(report->metrics);
  return out;
}

Json ranks_json(const judge::CaseResult& result, const std::string& id, bool has_logs) {
  std::map<int64_t, std::pair<const RankEnding*, const judge::RankReport*>> ranks;
  for (const auto& ending : result.endings) ranks[ending.rank].first = &ending;
  for (const auto& report : result.reports) ranks[report.rank].second = &report;
  const Mesh mesh = result.spec.parallel.mesh();
  auto out = Json::array();
  for (const auto& [rank, parts] : ranks) {
    out.push_back(
        rank_json(rank, parts.first, parts.second, mesh, has_logs ? log_file(id, rank) : ""));
  }
  return out;
}

Json files_json(const judge::CaseResult& result, const RunInfo& info, const std::string& id) {
  auto files = Json::array();
  if (has_failing_tensors(result)) files.push_back(tensor_file(id));
  const auto it = info.files.find(result.spec.name);
  if (it == info.files.end()) return files;
  for (const auto& file : it->second) files.push_back(valid_utf8(file));
  return files;
}

Json spec_json(const CaseSpec& spec) {
  return {{"name", valid_utf8(spec.name)},
          {"file", valid_utf8(spec.file)},
          {"line", spec.line},
          {"workload", spec.workload},
          {"precision", spec.precision},
          {"seed", spec.seed},
          {"steps", spec.steps},
          {"backend", spec.world.backend},
          {"device", spec.world.device},
          {"mesh", mesh_json(spec.parallel.mesh())},
          {"world_size", spec.parallel.world_size()},
          {"sequence_parallel", spec.parallel.sequence_parallel},
          {"data_parallel", spec.parallel.data_parallel},
          {"golden",
           crc32_text(golden_key(spec) + (spec.reference.is_set() ? reference_key(spec) : ""))},
          {"reference", spec.reference.is_set() ? Json(reference_name(spec.reference)) : Json()},
          {"sample_rows", spec.sample_rows > 0 ? Json(spec.sample_rows) : Json()},
          {"tags", texts(spec.tags)},
          {"expected",
           {{"verdict", spec.expect.verdict},
            {"kind", spec.expect.kind},
            {"tensor", valid_utf8(spec.expect.tensor)},
            {"detector", spec.expect.detector}}}};
}

Json case_json(size_t index, const judge::CaseResult& result, const RunInfo& info) {
  const std::string id = case_id(index, result.spec);
  Json out = {{"id", id}};
  out.update(spec_json(result.spec));
  if (!info.recorded.empty()) out["backend"] = out["device"] = "";  // they are not recorded
  out["verdict"] = result.verdict;
  out["judged"] = result.spec.judged;
  out["kind"] = result.kind;
  out["as_expected"] = result.as_expected;
  if (result.may_be_refused) out["may_be_refused"] = true;
  out["unexpected"] = valid_utf8(result.unexpected);
  out["message"] = valid_utf8(result.message);
  out["text"] =
      valid_utf8(info.recorded.empty() ? judge::describe_result(result, false) : info.recorded);
  out["seconds"] = json_number(result.seconds);
  out["golden_seconds"] = json_number(result.golden_seconds);
  out["compare_seconds"] = json_number(result.compare_seconds);
  out["tensors_compared"] = result.tensors_compared;
  out["elements_compared"] = result.elements_compared;
  out["elements"] = coverage_json(result.account.elements);
  out["rests_on"] = grounds_json(result.account);
  out["unresolved"] = unjudged_json(result.account.unresolved);
  out["not_judged"] = unjudged_json(result.account.not_judged);
  out["worst_ratio"] = json_number(result.worst_ratio);
  out["worst_tensor"] = valid_utf8(result.worst_tensor);
  out["divergence"] = result.divergence ? divergence_json(*result.divergence) : Json(nullptr);
  out["outcome"] = outcome_json(result.outcome);
  out["virtual_time"] = virtual_time_json(result);
  out["replay"] = valid_utf8(result.replay);
  out["replay_file"] =
      wants_replay(result) && info.recorded.empty() ? Json(replay_file(id)) : Json(nullptr);
  out["files"] = files_json(result, info, id);
  const bool all = keeps_all(result, info);
  out["ranks"] = ranks_json(result, id, all);
  out["digests"] = digest_table(result);
  out["kept"] = all ? "all" : "digests";
  out["tensors"] = all ? tensor_table(result) : Json::array();
  return out;
}

Json totals_json(const std::vector<judge::CaseResult>& results, const RunInfo& info) {
  Json totals = {{"cases", results.size()}};
  for (const std::string& verdict : all_names<Verdict>()) totals[verdict] = 0;
  totals["not_judged"] = 0;
  totals["skipped"] = info.skipped.size();
  totals["not_run"] = info.not_run.size();
  int64_t unexpected = 0;
  for (const auto& result : results) {
    Json& count = totals[is_unjudged(result) ? "not_judged" : name_of(result.verdict)];
    count = count.get<int64_t>() + 1;
    unexpected += result.as_expected ? 0 : 1;
  }
  totals["unexpected"] = unexpected;
  return totals;
}

// [I, N] of --shard I/N among the words of a command, or null.
Json shard_json(const std::vector<std::string>& words) {
  const std::string option = "--shard";
  for (size_t i = 0; i < words.size(); ++i) {
    std::string value;
    if (words[i] == option && i + 1 < words.size()) value = words[i + 1];
    if (words[i].starts_with(option + "=")) value = words[i].substr(option.size() + 1);
    int64_t share = 0, of = 0;
    if (std::sscanf(value.c_str(), "%ld/%ld", &share, &of) == 2) return Json::array({share, of});
  }
  return nullptr;
}

Json run_json(const RunInfo& info) {
  Json environment = Json::object();
  for (const auto& [key, value] : info.environment) environment[key] = valid_utf8(value);
  Json out = {{"command", valid_utf8(info.command)},
              {"arguments", texts(info.arguments)},
              {"shard", shard_json(info.arguments)},
              {"directory", valid_utf8(info.directory)},
              {"version", valid_utf8(info.version)},
              {"program", info.program},
              {"started", info.started.empty() ? utc_now() : valid_utf8(info.started)},
              {"seconds", json_number(info.seconds)},
              {"interrupted", info.interrupted},
              {"exit_status", info.exit_status < 0 ? Json(nullptr) : Json(info.exit_status)},
              {"environment", environment}};
  if (!info.selection.empty()) out["selection"] = info.selection;
  return out;
}

Json skipped_json(const std::vector<CaseSpec>& skipped) {
  auto out = Json::array();
  for (const auto& spec : skipped) {
    out.push_back({{"name", valid_utf8(spec.name)},
                   {"file", valid_utf8(spec.file)},
                   {"backend", spec.world.backend},
                   {"reason", valid_utf8(spec.skip)}});
  }
  return out;
}

std::string line_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string utc_now() {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}",
                     fmt::gmtime(std::chrono::system_clock::to_time_t(now)));
}

std::string results_head(const std::vector<judge::CaseResult>& results, const RunInfo& info) {
  return fmt::format(
      "{{\"format\": \"{}\",\n\"run\": {},\n\"totals\": {},\n\"skipped\": {},\n\"not_run\": "
      "{},\n\"cases\": [\n",
      kResultsFormat, line_of(run_json(info)), line_of(totals_json(results, info)),
      line_of(skipped_json(info.skipped)), line_of(skipped_json(info.not_run)));
}

std::string results_entry(size_t index, const judge::CaseResult& result, const RunInfo& info) {
  return line_of(case_json(index, result, info));
}

}  // namespace shardproof::sim::report
