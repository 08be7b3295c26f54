// The summary of a job of GitHub's workflows: Markdown at the end of the file that
// GITHUB_STEP_SUMMARY names, which GitHub shows on the page of the job.
#pragma once

#include <string>
#include <vector>

#include "sim/report/summary.h"

namespace shardproof::sim::report {

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
