#include "sim/run/file_judgement.h"

#include "base/error.h"

namespace shardproof::sim::run {

namespace {

ErrorKind kind_of(const world::TaskOutcome& failed) {
  switch (failed.kind) {
    case ResultKind::kBadInput:
      return ErrorKind::kBadInput;
    case ResultKind::kRefused:
      return ErrorKind::kRefused;
    case ResultKind::kDied:  // ended from outside
    case ResultKind::kHung:
      return ErrorKind::kFailed;
    default:
      throw InternalError("the golden " + name_of(failed.kind) + ": " + failed.message);
  }
}

}  // namespace

judge::FileJudgement judge_file(const CaseSpec& spec, GoldenStore& goldens, world::WorldPool& pool,
                                const std::string& path) {
  std::shared_ptr<const GoldenStore::Golden> golden;
  goldens.get(spec, [&](std::shared_ptr<const GoldenStore::Golden> made) { golden = made; });
  if (!golden) pool.wait_until([&golden] { return golden != nullptr; });
  if (pool.interrupted()) return {};
  const world::TaskOutcome& outcome = golden->outcome;
  if (!outcome.ok) {
    throw Error({.kind = kind_of(outcome), .what = outcome.message, .fix = ""});
  }
  return judge::judge_result_file(spec, golden->fd.get(), path);
}

}  // namespace shardproof::sim::run
