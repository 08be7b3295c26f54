// What judge writes of a recorded run besides its text: the folder of --out and a section of the
// job's summary, as run does, and annotations of GitHub's workflows.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "base/mutex.h"
#include "sim/cli/arguments.h"
#include "sim/uses/recorded/recorded_judgement.h"

namespace shardproof::sim::cli {

// Prints a line when `first` has passed, and again after each `then`, until it is destroyed.
class WaitNote {
 public:
  // `line` gets the seconds so far. It is called on a thread of the note's own.
  WaitNote(std::function<std::string(double seconds)> line, std::chrono::seconds first,
           std::chrono::seconds then);
  explicit WaitNote(const std::string& what);  // "reading, 11 s so far": after 1 s, then every 10 s
  ~WaitNote();
  WaitNote(const WaitNote&) = delete;
  WaitNote& operator=(const WaitNote&) = delete;

 private:
  Mutex mutex_;
  Condition ended_;
  bool is_over_ SHARDPROOF_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Makes the folder of --out, before anything is read; "" when there is none. Throws
// Error(kBadInput) when it cannot be made, holds a run that the command reads, or holds something
// that is not of a run, unless --force; or when the job's summary cannot be written.
std::string make_judge_folder(const CheckArguments& arguments);

void write_judge_folder(const std::string& folder, const CheckArguments& arguments,
                        const recorded::RecordedJudgement& judgement, double seconds,
                        int exit_status);

// Prints one where GITHUB_ACTIONS is "true" and the run does not match.
void annotate(const recorded::RecordedJudgement& judgement);

// Says on stderr how far a command is, every two seconds.
class Ticker {
 public:
  Ticker();

  void at(const char* stage) {  // a text of the program
    stage_ = stage;
    all_ = 0;
  }
  void done(int64_t done, int64_t all) {
    done_ = done;
    all_ = all;
  }

 private:
  std::string line(double seconds) const;

  std::atomic<const char*> stage_ = "starting";
  std::atomic<int64_t> done_ = 0, all_ = 0;
  WaitNote note_;  // the last member: it reads the others
};

}  // namespace shardproof::sim::cli
