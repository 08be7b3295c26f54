// What judge writes of a recorded run besides its text: the folder of --out, as run does, and
// annotations of GitHub's workflows.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "sim/cli/arguments.h"
#include "sim/uses/recorded/recorded_judgement.h"

namespace shardproof::sim::cli {

// Makes the folder of --out, before anything is read; "" when there is none. Throws
// Error(kBadInput) when it cannot be made, holds a run that the command reads, or holds something
// that is not of a run, unless --force.
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
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  void at(const char* stage) {  // a text of the program
    stage_ = stage;
    all_ = 0;
  }
  void done(int64_t done, int64_t all) {
    done_ = done;
    all_ = all;
  }

 private:
  void say_until_ended();

  std::atomic<const char*> stage_ = "starting";
  std::atomic<int64_t> done_ = 0, all_ = 0;
  bool ended_ = false;
  std::mutex mutex_;
  std::condition_variable end_;
  std::thread thread_;
};

}  // namespace shardproof::sim::cli
