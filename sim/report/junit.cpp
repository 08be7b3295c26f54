// Writes the XML directly: it has five elements, and all text passes through xml_text.
#include <fmt/format.h>

#include <cctype>

#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/reference.h"
#include "sim/report/escape.h"
#include "sim/report/results_json.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"

namespace shardproof::sim::report {
namespace {

struct Suite {
  std::string file;
  std::string body;
  int64_t tests = 0, failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
};

// Whether a case that did not end as expected ran and gave other values.
bool is_failure(const judge::CaseResult& result) {
  return result.verdict == Verdict::kMatch || result.verdict == Verdict::kMismatch ||
         result.verdict == Verdict::kRefused;
}

std::string outcome_element(const judge::CaseResult& result, const std::string& text) {
  if (result.as_expected) return "";
  const std::string kind = name_of(result.kind);
  const std::string type = name_of(result.verdict) + (kind.empty() ? "" : "." + kind);
  return fmt::format("      <{0} type=\"{1}\" message=\"{2}\">{3}</{0}>\n",
                     is_failure(result) ? "failure" : "error", xml_text(type),
                     xml_text(finding_line(result)),
                     xml_text(text.empty() ? judge::describe_result(result, false) : text));
}

// Where the page that `report` writes has this case (reports/README.md).
std::string link_element(const std::string& name) {
  std::string anchor;
  for (const char c : name) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
    if (plain || !anchor.ends_with('-')) anchor += plain ? c : '-';
  }
  while (anchor.ends_with('-')) anchor.pop_back();
  while (anchor.starts_with('-')) anchor.erase(0, 1);
  return fmt::format(
      "      <properties><property name=\"report\" value=\"report.html#case-{}\"/></properties>\n",
      anchor);
}

std::string case_element(const std::string& file, const std::string& name, double seconds,
                         const std::string& inside) {
  const std::string head = fmt::format("    <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\"",
                                       xml_text(file), xml_text(name), seconds);
  return inside.empty() ? head + "/>\n" : head + ">\n" + inside + "    </testcase>\n";
}

std::string name_with_backend(const CaseSpec& spec) {
  return fmt::format("{} ({})", spec.name, spec.world.backend);
}

Suite& suite_of(std::vector<Suite>& suites, const std::string& file) {
  for (auto& suite : suites) {
    if (suite.file == file) return suite;
  }
  suites.push_back({.file = file, .body = {}});
  return suites.back();
}

void add_skipped(std::vector<Suite>& suites, const CaseSpec& spec, const std::string& reason) {
  Suite& suite = suite_of(suites, spec.file);
  ++suite.tests;
  ++suite.skipped;
  suite.body += case_element(spec.file, name_with_backend(spec), 0,
                             fmt::format("      <skipped message=\"{}\"/>\n", xml_text(reason)));
}

std::string suite_element(const Suite& suite, const std::string& started) {
  return fmt::format(
      "  <testsuite name=\"{}\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" "
      "time=\"{:.3f}\" timestamp=\"{}\">\n{}  </testsuite>\n",
      xml_text(suite.file), suite.tests, suite.failures, suite.errors, suite.skipped, suite.seconds,
      xml_text(started), suite.body);
}

[[noreturn]] void not_whole(const std::string& why) {
  throw_bad_input(fmt::format("a record \"junit\" of the journal is not whole ({})", why),
                  "start a new run");
}

// What fails a case that ended as expected, as the first element of its testcase.
std::string with_failure(std::string xml, const std::string& unresolved) {
  const std::string element =
      fmt::format("      <failure type=\"unresolved\" message=\"{}\"/>\n", xml_text(unresolved));
  return xml.insert(xml.find('\n') + 1, element);
}

// Of a case that ended as expected; "" where it was judged.
std::string why_nothing_was_compared(const judge::CaseResult& result) {
  if (!result.as_expected) return "";
  if (result.may_be_refused) return "refused: " + result.message;
  return is_unjudged(result) ? "not judged: the case has judged: false" : "";
}

// `part` is a record of a journal, which may be any text.
void add_part(std::vector<Suite>& suites, const std::string& part, bool no_unresolved) {
  try {
    const auto one = parse_json_object("its text", part);
    Suite& suite = suite_of(suites, one.at("file"));
    ++suite.tests;
    const std::string unresolved = one.value("unresolved", "");
    const bool is_failed = no_unresolved && !unresolved.empty();
    suite.failures += is_failed || one.at("failed").get<bool>();
    suite.errors += one.at("in_error").get<bool>();
    suite.skipped += one.at("skipped").get<bool>();
    suite.seconds += one.at("seconds").get<double>();
    const std::string xml = one.at("xml");
    suite.body += is_failed ? with_failure(xml, unresolved) : xml;
  } catch (const nlohmann::json::exception& error) {
    not_whole(json_problem(error));
  } catch (const Error&) {
    not_whole("it is not a JSON object");
  }
}

}  // namespace

std::string junit_part(const judge::CaseResult& result, const RunInfo& info) {
  const std::string name =
      info.recorded.empty() ? name_with_backend(result.spec) : result.spec.name;
  const std::string unresolved = judge::unresolved_text(result.account, result.spec.precision);
  std::string inside = link_element(name) + outcome_element(result, info.recorded);
  if (!result.as_expected && !result.replay.empty()) {
    inside += fmt::format("      <system-out>replay: {}</system-out>\n", xml_text(result.replay));
  }
  std::string note = match_limits(result.spec);
  if (result.verdict == Verdict::kMatch && judge::lacks_gradients(result.account.grounds)) {
    note += fmt::format("{}no gradient was judged", note.empty() ? "" : "\n");
  }
  if (!note.empty()) inside += fmt::format("      <system-out>{}</system-out>\n", xml_text(note));
  if (!unresolved.empty()) {
    inside += fmt::format("      <system-err>{}</system-err>\n", xml_text(unresolved));
  }
  const std::string skipped = why_nothing_was_compared(result);
  if (!skipped.empty()) {
    inside += fmt::format("      <skipped message=\"{}\"/>\n", xml_text(skipped));
  }
  const bool failed = !result.as_expected && is_failure(result);
  return nlohmann::json{{"file", valid_utf8(result.spec.file)},
                        {"failed", failed},
                        {"in_error", !result.as_expected && !failed},
                        {"skipped", !skipped.empty()},
                        {"unresolved", result.as_expected ? unresolved : ""},
                        {"seconds", result.seconds},
                        {"xml", case_element(result.spec.file, name, result.seconds, inside)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string junit_xml(const std::vector<std::string>& parts, const RunInfo& info) {
  std::vector<Suite> suites;
  for (const std::string& part : parts) add_part(suites, part, info.no_unresolved);
  for (const CaseSpec& spec : info.skipped) add_skipped(suites, spec, spec.skip);
  for (const CaseSpec& spec : info.not_run) add_skipped(suites, spec, "not run: " + spec.skip);
  Suite all;
  std::string body;
  const std::string started = info.started.empty() ? utc_now() : info.started;
  for (const auto& suite : suites) {
    body += suite_element(suite, started);
    all.tests += suite.tests;
    all.failures += suite.failures;
    all.errors += suite.errors;
    all.skipped += suite.skipped;
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"shardproof\" tests=\"{}\" "
      "failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n{}</testsuites>\n",
      all.tests, all.failures, all.errors, all.skipped, info.seconds, body);
}

}  // namespace shardproof::sim::report
