// What a result file lacks, as a sentence.
#include <fmt/format.h>

#include "base/error.h"
#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size() && i < 6; ++i) text += (i > 0 ? ", " : "") + names[i];
  if (names.size() > 6) text += fmt::format(" and {} more", names.size() - 6);
  return text;
}

}  // namespace

std::string partial_line(const FileJudgement& judgement, const std::string& path, bool allowed) {
  const std::vector<std::string>& lacking = judgement.lacking;
  if (lacking.empty()) return "";
  const std::string text = fmt::format("{} of {} tensors were judged: {} does not hold {}",
                                       judgement.demanded - static_cast<int64_t>(lacking.size()),
                                       judgement.demanded, path, listed(lacking));
  if (allowed || judgement.result.verdict != Verdict::kMatch) return text + "\n";
  throw_bad_input(text, "write the rest too, or add --allow-partial");
}

}  // namespace shardproof::sim::judge
