// The output of a run for people, during the run and at its end.
#pragma once

#include <chrono>
#include <cstdint>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// Prints one line per finished case. On a terminal it also rewrites a last line with the progress
// and the running cases. Not thread-safe: the control process has one thread.
class Progress {
 public:
  struct Style {
    bool terminal = false;  // the last line is rewritten
    bool color = false;
    bool quiet = false;        // expected results have no line
    bool json_lines = false;   // each case is a line of JSON (case_json_line), and nothing else
    bool annotations = false;  // unexpected results are also annotations of GitHub's workflows
  };
  // `case_count` does not include skipped cases.
  Progress(std::ostream& out, const Style& style, int64_t case_count);
  ~Progress();  // clears the rewritten line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void started(const std::string& case_name);
  // Prints one line for an expected result, else the full finding (describe_result).
  void finished(const judge::CaseResult& result);
  // As a line of JSON: a case that did not run, whose `skip` says why. `verdict`: "skipped", "not
  // run".
  void left_out(const CaseSpec& spec, const char* verdict);
  // Prints a separate line.
  void note(const std::string& text);

 private:
  void clear();
  void redraw();

  // "about 3 min left", from the time of the finished cases; "" before the first has finished.
  std::string time_left() const;

  std::ostream& out_;
  Style style_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int64_t case_count_;
  int64_t finished_count_ = 0, unexpected_count_ = 0;
  std::set<std::string> running_;
  bool drawn_ = false;
};

// Whether a case ran to its end and was compared with nothing (judged: false).
bool is_unjudged(const judge::CaseResult& result);

// "match     0.12 s  tp/llama_tp2[precision=float64]   212 tensors, at most 3.1% of the allowance"
std::string case_line(const judge::CaseResult& result, bool color);

// "\n             warning  rank 0, 1: .." for each sentence, with its ranks; "" when there are
// none.
std::string warning_lines(const judge::CaseResult& result);

// The result in full (describe_result) and its warning_lines(), without a line break at the end.
std::string result_text(const judge::CaseResult& result, bool color);

// One case as JSON in one line: name, file, line, backend, verdict, kind, as_expected, message,
// seconds, tensor, pattern, likely, ranks, replay.
std::string case_json_line(const judge::CaseResult& result);

// What a case that is not as expected shows where there is room for one line: what was expected,
// the first wrong tensor with its ranks, the pattern of its error and its likely cause.
std::string finding_line(const judge::CaseResult& result);

// "::error file=..,line=..,title=..::message", which GitHub shows at the line of the scenario.
std::string annotation(const judge::CaseResult& result);

// The `count` slowest cases, one line each.
std::string slowest_text(const std::vector<judge::CaseResult>& results, int64_t count);

struct SummaryParts {
  const std::vector<judge::CaseResult>& results;
  const std::vector<CaseSpec>& skipped;
  const std::vector<CaseSpec>& not_run;  // selected, and not run to their end
  double seconds = 0;
  int exit_status = 0;                 // negative: none
  int64_t slow = 0;                    // cases left out for their tag, slow or manual
  std::string run_folder = {};         // "": none was written
  bool resumable = true;               // `run --resume` can go on with it
  std::string program = "shardproof";  // how it is called here
};

// "2 cases tagged slow or manual (--all runs them)"
std::string slow_text(int64_t slow);
// "3 cases: 2 match, 1 mismatch   0.4 s   1 not as expected"
std::string totals_text(const SummaryParts& parts, bool color);
// exit_status_text of this run, with the count that made it: "1: 1 of 3 cases not as expected".
std::string status_text(const SummaryParts& parts);

// Totals, what was unexpected (one line each), skips and cases that were not run with their
// reasons, where the results are, and what the exit status means. Ends with a newline.
std::string summary_text(const SummaryParts& parts, bool color);

// "0: every case as expected", "3: a world failed", ..
std::string exit_status_text(int exit_status);

// The summary of a job of GitHub's workflows: Markdown at the end of the file that
// GITHUB_STEP_SUMMARY names, which GitHub shows on the page of the job.

// A row of its table.
struct JobFinding {
  std::string name;  // of a case, a host or a link
  std::string text;  // what is wrong, whose it is, and why
};

// One section: a title, what was counted, and a table of the first findings, whose first column is
// `named`. `all` says where the others are.
std::string job_section(const std::string& title, const std::string& counts,
                        const std::string& named, const std::vector<JobFinding>& findings,
                        const std::string& all);
// The section of cases that `run` or `judge` has ended.
std::string job_section(const SummaryParts& parts);

class JobSummary {
 public:
  // Without the variable nothing is ever written. Throws Error(kBadInput): the file cannot be
  // written.
  JobSummary();
  // Throws as the constructor, for example when the disk is full.
  void add(const std::string& section) const;

 private:
  std::string file_;  // "": none
};

}  // namespace shardproof::sim::report
