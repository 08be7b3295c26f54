#include "sim/uses/relations/relation_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/utf8.h"
#include "sim/judge/verdict/replay.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::relations {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr const char* kValuesFile = "values.safetensors";

// Copies, as the file goes.
Values read_values(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  Values values;
  for (const std::string& name : file.names()) values[name] = file.get(name).clone();
  return values;
}

struct Ran {
  judge::CaseResult result;
  Values values;  // empty when the ranks did not finish
};

bool finished(const Ran& ran) { return ran.result.verdict == Verdict::kMatch; }

Ran ran_with(judge::CaseResult result, const std::string& values_file) {
  Ran ran{.result = std::move(result), .values = {}};
  try {
    if (finished(ran)) ran.values = read_values(values_file);
  } catch (const Error& error) {
    ran.result.verdict = Verdict::kInternal;
    ran.result.kind = ResultKind::kInternal;
    ran.result.message = error.what();
  }
  return ran;
}

// Of a case that has not run, or whose values do not fit.
judge::CaseResult without_values(const CaseSpec& spec, Verdict verdict,
                                 const std::string& message) {
  judge::CaseResult result;
  result.spec = spec;
  result.verdict = verdict;
  result.kind = verdict == Verdict::kBadInput ? ResultKind::kBadInput : ResultKind::kInternal;
  result.message = message;
  result.unexpected = message;
  result.replay = judge::replay_command(spec);
  return result;
}

// Of a run that did not finish. A change that the ranks refuse, or that does not fit other settings
// of the case, such as a budget of tokens, says nothing.
void take_ending(judge::CaseResult& result, const Ran& ran, const std::string& changed) {
  result.verdict = ran.result.verdict;
  result.kind = ran.result.kind;
  result.message = ran.result.message;
  result.endings = ran.result.endings;
  result.as_expected = false;
  result.unexpected = "the case itself did not finish: " + first_line(ran.result.message);
  if (changed.empty()) return;
  result.message = fmt::format("with {}: {}", changed, ran.result.message);
  result.unexpected = "the changed case did not finish: " + first_line(ran.result.message);
  const bool is_of_settings =
      !result.endings.empty() && std::ranges::none_of(result.endings, [](const RankEnding& ending) {
        return ending.shortage || ending.kind == ResultKind::kFinished;
      });
  if (result.kind == ResultKind::kBadInput && is_of_settings) {
    result.verdict = Verdict::kRefused;
    result.kind = ResultKind::kRefused;
  }
  result.as_expected = result.may_be_refused =
      result.verdict == Verdict::kRefused && result.kind != ResultKind::kUnresolved;
}

}  // namespace

struct RelationRuns::Base {
  CaseSpec named;
  Variant variant;
  std::string folder;
  std::optional<Ran> ran = {};
  bool started = false;
  std::vector<std::function<void()>> waiting = {};
};

struct RelationRuns::Job {
  CaseSpec named;
  run::CaseRunner::Done done;
  const Relation* relation = nullptr;
  std::string folder = {};  // of its two cases
  Clock::time_point start = Clock::now();
  std::shared_ptr<Base> base = {};
  std::optional<RelatedPair> pair = {};
  std::optional<Ran> first = {}, second = {};
  bool ended = false;  // `done` was called
};

RelationRuns::~RelationRuns() {
  std::error_code error;
  fs::remove(folder_, error);  // unless a finding is there
}

void RelationRuns::start(const CaseSpec& named, const run::CaseRunner::Done& done) {
  const auto job = std::make_shared<Job>(Job{.named = named, .done = done});
  job->relation = relation_of(named.name);
  SHARDPROOF_ASSERT(job->relation != nullptr, named.name + " names no relation");
  do {  // another process may have left some, before --resume
    job->folder = (fs::path(folder_) / fmt::format("{:05}", ++count_)).string();
  } while (fs::exists(job->folder));
  const std::string case_name = name_without_relation(named.name);
  try {
    if (!base_ || name_without_relation(base_->named.name) != case_name ||
        base_->named.world.backend != named.world.backend || base_->named.file != named.file) {
      base_ = std::make_shared<Base>(
          Base{.named = named, .variant = load_variant(named), .folder = job->folder + ".case"});
    }
    job->base = base_;
    start_pair(job);
  } catch (const std::exception& error) {
    if (job->ended) throw;
    job->ended = true;
    base_.reset();  // what waits for it would wait for ever
    const bool is_input = dynamic_cast<const Error*>(&error) != nullptr;
    done(without_values(named, is_input ? Verdict::kBadInput : Verdict::kInternal, error.what()));
  }
}

void RelationRuns::start_pair(const std::shared_ptr<Job>& job) {
  const Relation& relation = *job->relation;
  job->pair.emplace(related_pair(relation, job->base->variant));
  if (is_unchanged(relation, *job->pair)) {
    judge::CaseResult result = without_values(
        job->named, Verdict::kRefused,
        fmt::format("with {} the case is what it was, which shows nothing", relation.changed));
    result.kind = ResultKind::kRefused;
    result.as_expected = result.may_be_refused = true;
    result.unexpected.clear();
    job->ended = true;
    return job->done(std::move(result));
  }
  const auto start_one = [&](const Variant& variant, const char* name, std::optional<Ran>& ran) {
    const std::string folder = (fs::path(job->folder) / name).string();
    CaseSpec spec = write_variant(variant, folder);
    spec.dump_file = (fs::path(folder) / kValuesFile).string();
    runner_.start(spec, [this, job, &ran, file = spec.dump_file](judge::CaseResult result) {
      ran = ran_with(std::move(result), file);
      finish(job);
    });
  };
  if (relation.changes_first) {
    start_one(job->pair->first, "first", job->first);
  } else {
    const auto take = [this, job] {
      job->first = *job->base->ran;
      finish(job);
    };
    if (job->base->ran) {
      job->first = *job->base->ran;
    } else {
      job->base->waiting.push_back(take);
      if (!job->base->started) start_base(job->base);
    }
  }
  start_one(job->pair->second, "second", job->second);
}

void RelationRuns::start_base(const std::shared_ptr<Base>& base) {
  fs::create_directories(base->folder);
  CaseSpec spec = plain_run(base->named);
  spec.dump_file = (fs::path(base->folder) / kValuesFile).string();
  base->started = true;
  runner_.start(spec, [base, file = spec.dump_file](judge::CaseResult result) {
    base->ran = ran_with(std::move(result), file);
    fs::remove_all(base->folder);
    const auto waiting = std::move(base->waiting);
    base->waiting.clear();
    for (const auto& take : waiting) take();
  });
}

void RelationRuns::finish(const std::shared_ptr<Job>& job) {
  if (!job->first || !job->second) return;
  judge::CaseResult result;
  result.spec = job->named;
  result.replay = judge::replay_command(job->named);
  const Relation& relation = *job->relation;
  if (!finished(*job->first)) {
    take_ending(result, *job->first, relation.changes_first ? relation.changed : "");
  } else if (!finished(*job->second)) {
    take_ending(result, *job->second, relation.changed);
  } else {
    try {
      compare(*job, result);
    } catch (const std::exception& error) {
      result = without_values(job->named, Verdict::kInternal, error.what());
    }
  }
  result.seconds = seconds_since(job->start);
  if (result.as_expected) fs::remove_all(job->folder);
  job->ended = true;
  job->done(std::move(result));
}

void RelationRuns::compare(Job& job, judge::CaseResult& result) {
  const Relation& relation = *job.relation;
  Values &first = job.first->values, &second = job.second->values;
  bring_back(relation, *job.pair, first, second);
  const Comparison found = compare_values(job.named, first, second, relation.exact);
  result.tensors_compared = found.tensors;
  result.elements_compared = found.elements;
  result.worst_ratio = found.worst_ratio;
  result.worst_tensor = found.worst_tensor;
  result.verdict = Verdict::kMatch;
  result.as_expected = true;
  const bool is_empty = found.is_empty && !job.named.expect.nothing_counted;
  if (!found.difference && (is_empty || !found.not_finite.empty())) {
    result.verdict = Verdict::kBadInput;
    result.kind = ResultKind::kBadInput;
    result.as_expected = false;
    result.message = is_empty ? "nothing was compared that is not 0"
                              : found.not_finite + " of the case itself is not finite";
    result.unexpected = "the relation would show nothing";
    return;
  }
  if (!found.difference) return;
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kRelation;
  result.as_expected = false;
  result.unexpected = "the relation does not hold";
  result.message = fmt::format("{}; the two cases are {}/first and second",
                               difference_text(*found.difference, relation.changed), job.folder);
  if (relation.changes_first) return;
  write_variant(job.pair->first, (fs::path(job.folder) / "first").string());
}

}  // namespace shardproof::sim::relations
