#include "sim/run/file_judgement.h"

#include "base/error.h"

namespace shardproof::sim {

FileJudgement judge_file(const CaseSpec& spec, GoldenStore& goldens, WorldPool& pool,
                         const std::string& path) {
  std::shared_ptr<const GoldenStore::Golden> golden;
  goldens.get(spec, [&](std::shared_ptr<const GoldenStore::Golden> made) { golden = made; });
  if (!golden) pool.wait_until([&golden] { return golden != nullptr; });
  if (pool.interrupted()) return {};
  const TaskOutcome& outcome = golden->outcome;
  if (!outcome.ok) {
    if (outcome.kind != ResultKind::kBadInput && outcome.kind != ResultKind::kRefused) {
      throw InternalError("the golden " + name_of(outcome.kind) + ": " + outcome.message);
    }
    throw Error(
        {.kind = outcome.kind == ResultKind::kRefused ? ErrorKind::kRefused : ErrorKind::kBadInput,
         .what = outcome.message,
         .fix = ""});
  }
  return judge_result_file(spec, golden->fd.get(), path);
}

}  // namespace shardproof::sim
