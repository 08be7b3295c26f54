#include "sim/uses/explore/tried_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <thread>
#include <utility>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"

namespace shardproof::sim::explore {

namespace {

constexpr const char* kNotRun = "not run";

TriedCases::Ending ending(const judge::CaseResult& result) {
  return {failure_signature(result), failure_text(result), result.verdict, result.kind};
}

}  // namespace

TriedCases::TriedCases(run::CaseRunner& runner, std::string file, WorldChoice world,
                       std::function<bool()> in_time, std::function<bool()> interrupted)
    : runner_(runner),
      file_(std::move(file)),
      world_(std::move(world)),
      in_time_(std::move(in_time)),
      interrupted_(std::move(interrupted)) {}

judge::CaseResult TriedCases::run(const CaseSettings& settings) {
  const CheckedCase checked = check_settings(settings, file_, world_);
  if (!checked.spec) throw_bad_input(checked.sentence, "shrink a case that can run");
  judge::CaseResult result = runner_.run(*checked.spec);
  endings_[settings.dump()] = ending(result);
  return result;
}

std::vector<std::string> TriedCases::signatures_of(const std::vector<CaseSettings>& cases) {
  say_progress();
  for (const CaseSettings& settings : cases) start(settings);
  runner_.wait_until_at_most(0);
  std::vector<std::string> signatures;
  for (const CaseSettings& settings : cases) {
    const Ending* const found = ending_of(settings);
    signatures.push_back(found == nullptr ? kNotRun : found->signature);
  }
  return signatures;
}

const TriedCases::Ending* TriedCases::ending_of(const CaseSettings& settings) const {
  const auto found = endings_.find(settings.dump());
  return found == endings_.end() ? nullptr : &found->second;
}

std::string TriedCases::size_text(const CaseSettings& settings) const {
  const CheckedCase checked = check_settings(settings, file_, world_);
  const int64_t ranks = checked.spec ? checked.spec->parallel.world_size() : 1;
  return count_of(ranks, "rank") + " and " +
         count_of(static_cast<int64_t>(settings.size()), "setting");
}

void TriedCases::start(const CaseSettings& settings) {
  const std::string text = settings.dump();
  if (endings_.count(text) != 0 || !in_time_()) return;
  const CheckedCase checked = check_settings(settings, file_, world_);
  if (!checked.spec) {
    endings_[text] = {"refused: " + checked.sentence, ""};
    return;
  }
  endings_[text] = {kNotRun, ""};
  const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
  runner_.wait_for_room(checked.spec->parallel.world_size(), cores);
  runner_.start(*checked.spec, [this, text](const judge::CaseResult& result) {
    if (!interrupted_()) endings_[text] = ending(result);
  });
}

// The search takes a while; each of its waits is short.
void TriedCases::say_progress() {
  if (seconds_since(said_) < 1) return;
  said_ = std::chrono::steady_clock::now();
  std::cerr << fmt::format("shardproof: searching, {} cases after {:.0f} s\n", endings_.size(),
                           seconds_since(start_));
}

}  // namespace shardproof::sim::explore
