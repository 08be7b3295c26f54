#include "sim/uses/explore/shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <regex>
#include <thread>
#include <utility>

#include "base/count_of.h"
#include "base/elapsed.h"
#include "base/error.h"
#include "sim/uses/explore/smaller_cases.h"

namespace shardproof::sim::explore {
namespace {

constexpr size_t kMostCandidates = 16;  // of one round, so that the largest gains come first

// The search: what is known of each case, and the smallest one that fails the same way.
class Shrinking {
 public:
  Shrinking(CaseSettings settings, const std::string& signature, const Signatures& run,
            const std::function<bool()>& in_time, const WorkloadOptions& options)
      : signature_(signature), run_(run), in_time_(in_time), options_(options) {
    found_.settings = std::move(settings);
  }

  Shrunk search() {
    begin_small();
    do {
      while (one_round()) {
      }
    } while (found_.in_time && with_fewer_axes());
    return std::move(found_);
  }

 private:
  // Many edits at once, since each of them alone leaves a large case that takes long. Which axes of
  // the mesh are needed is not known yet, so they stay.
  void begin_small() {
    std::vector<Edit> edits = smaller_cases(found_.settings, options_), joins;
    std::erase_if(edits, [](const Edit& edit) { return edit.what.starts_with("parallel."); });
    for (size_t count = edits.size(); count > 1 && joins.size() < kMostCandidates; count /= 2) {
      joins.push_back(joined(edits, count));
    }
    if (joins.empty() || !(found_.in_time = in_time_())) return;
    ++found_.rounds;
    const CaseSettings before = found_.settings;
    for (const Edit& one : those_that_fail(joins)) {
      const CaseSettings smaller = edited(before, one);
      if (size_of(smaller) < size_of(found_.settings)) found_.settings = smaller;
    }
  }

  // False when no edit is left that fails the same way, or no time.
  bool one_round() {
    found_.kept.clear();
    const std::vector<Edit> edits = smaller_cases(found_.settings, options_);
    for (size_t begin = 0; begin < edits.size(); begin += kMostCandidates) {
      if (!(found_.in_time = in_time_())) return false;
      ++found_.rounds;
      const size_t end = std::min(edits.size(), begin + kMostCandidates);
      const std::vector<Edit> some(edits.begin() + static_cast<std::ptrdiff_t>(begin),
                                   edits.begin() + static_cast<std::ptrdiff_t>(end));
      const std::vector<Edit> same = those_that_fail(some);
      if (same.empty()) continue;
      join(same);
      return true;
    }
    return false;
  }

  // What the difference over an axis explains has another pattern without that axis: there the
  // verdict and the tensor are compared alone, and from then on the new pattern counts.
  bool with_fewer_axes() {
    const std::vector<Edit> edits = edits_without_axes(found_.settings, options_);
    if (edits.empty() || !(found_.in_time = in_time_())) return false;
    ++found_.rounds;
    const std::vector<std::string> signatures = signatures_of(edits);
    for (size_t i = 0; i < edits.size(); ++i) {
      if (without_cause(signatures[i]) != without_cause(signature_)) continue;
      found_.settings = edited(found_.settings, edits[i]);
      signature_ = signatures[i];
      return true;
    }
    return false;
  }

  std::vector<std::string> signatures_of(const std::vector<Edit>& edits) {
    std::vector<CaseSettings> cases;
    for (const Edit& edit : edits) cases.push_back(edited(found_.settings, edit));
    found_.cases_run += std::ssize(cases);
    return run_(cases);
  }

  std::vector<Edit> those_that_fail(const std::vector<Edit>& edits) {
    const std::vector<std::string> signatures = signatures_of(edits);
    std::vector<Edit> same;
    for (size_t i = 0; i < edits.size(); ++i) {
      if (signatures[i] == signature_) {
        same.push_back(edits[i]);
      } else {
        found_.kept.push_back({edits[i].what, signatures[i], edited(found_.settings, edits[i])});
      }
    }
    return same;
  }

  // Edits that each may be made may not be made together: all, half of them, .., the best one.
  void join(const std::vector<Edit>& edits) {
    std::vector<Edit> joins;
    for (size_t count = edits.size(); count > 1; count = (count + 1) / 2) {
      joins.push_back(joined(edits, count));
      if (count == 2) break;
    }
    const CaseSettings before = found_.settings;
    CaseSettings best = edited(before, edits.front());
    if (!joins.empty() && in_time_()) {
      for (const Edit& one : those_that_fail(joins)) {
        const CaseSettings smaller = edited(before, one);
        if (size_of(smaller) < size_of(best)) best = smaller;
      }
    }
    found_.settings = best;
  }

  std::string signature_;
  const Signatures& run_;
  const std::function<bool()>& in_time_;
  const WorkloadOptions options_;
  Shrunk found_ = {};
};

constexpr const char* kNotRun = "not run";

TriedCases::Ending ending(const judge::CaseResult& result) {
  return {failure_signature(result), failure_text(result), result.verdict, result.kind};
}

}  // namespace

Shrunk shrink_case(CaseSettings settings, const std::string& signature, const Signatures& run,
                   const std::function<bool()>& in_time, const WorkloadOptions& options) {
  return Shrinking(std::move(settings), signature, run, in_time, options).search();
}

namespace {

constexpr const char* kBeforeCause = ": ";

// "every element is 2.00 x golden on ranks 0, 1" -> "every element is # x golden".
std::string without_numbers(const std::string& text) {
  static const std::regex number(R"(-?\b[0-9]+(\.[0-9]+)?(e[-+]?[0-9]+)?\b)");
  static const std::regex list(R"(#(,( (and )?)?#|-#| to #| and #)+)");
  static const std::regex plural(R"(\branks\b)");
  std::string plain = std::regex_replace(text, number, "#");
  plain = std::regex_replace(plain, list, "#");
  static const std::regex places("wrong only at .*");  // which a smaller tensor may not have
  plain = std::regex_replace(plain, places, "wrong only at places");
  return std::regex_replace(plain, plural, "rank");
}

// Without the ranks that hold what is wrong, and their place on an axis: a smaller mesh has fewer.
std::string without_holders(const std::string& text) {
  static const std::regex holders(
      R"( on (all ranks|the one rank|ranks? [0-9]+((, and |, | and | to |-)[0-9]+)*))"
      R"(( only)?( \([^)]*\))?)");
  return std::regex_replace(text, holders, "");
}

// "ranks 2, 3: all_gather tp[0,1] 'k_proj forward': rank 3 has size 4" -> "all_gather tp[0,1] rank
// 3 has size 4": in a smaller world all ranks may say so, and of several layers that fail another
// one may be the first.
std::string without_speakers(const std::string& text) {
  static const std::regex speakers(R"(^ranks? [0-9]+(, [0-9]+)*( and [0-9]+ more)?: )");
  static const std::regex label(R"(\] '[^']*':?)");
  return std::regex_replace(std::regex_replace(text, speakers, ""), label, "]");
}

// Of ranks that disagree about a call: its axis, and what differs. Of data that was altered: the op
// and the axis of the call. "" for other messages.
std::string failed_call(const std::string& message) {
  static const std::regex disagreement(R"(disagree on call [0-9]+ of (\w+)\[[^\]]*\]: ([a-z ]+))");
  static const std::regex altered(R"( (in|of) (\w+)(\([a-z]+\))? (\w+)\[)");
  std::smatch found;
  if (std::regex_search(message, found, disagreement)) {
    return fmt::format(" {} {}", found.str(1), found.str(2));
  }
  if (!std::regex_search(message, found, altered)) return "";
  return fmt::format(" {} {}", found.str(2), found.str(4));
}

// The sentence up to its first detail.
std::string first_clause(const std::string& text) {
  return text.substr(0, text.find_first_of(":;(\n"));
}

}  // namespace

std::string failure_signature(const judge::CaseResult& result) {
  if (result.verdict == Verdict::kMatch) return "";
  std::string signature = fmt::format("{} {}", result.verdict, result.kind);
  if (result.divergence) {
    const judge::Divergence& found = *result.divergence;
    const std::string& cause = found.likely.empty() ? found.pattern : found.likely;
    // A case whose gradients are all 0 would show little, or be refused, once it does not fail.
    const char* zeros = result.account.grounds.is_empty ? kOfZeros : "";
    return fmt::format("{} {}{}{}{}", signature, without_numbers(found.tensor), zeros, kBeforeCause,
                       without_numbers(first_clause(without_holders(cause))));
  }
  // The message of another verdict names ranks and calls; of an exception it is what was thrown.
  const bool says = result.kind == ResultKind::kThrew || result.kind == ResultKind::kInternal ||
                    result.verdict == Verdict::kRefused || result.verdict == Verdict::kBadInput;
  if (says) {
    return signature + " " + without_numbers(first_clause(without_speakers(result.message)));
  }
  const bool is_of_call =
      result.kind == ResultKind::kDisagreement || result.kind == ResultKind::kDigest;
  return is_of_call ? signature + failed_call(result.message) : signature;
}

std::string without_cause(const std::string& signature) {
  return signature.substr(0, signature.find(kBeforeCause));
}

std::string failure_text(const judge::CaseResult& result) {
  return fmt::format("{} ({}): {}", result.verdict, result.kind, result.message);
}

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
  return count_of(ranks, "rank") + " and " + count_of(std::ssize(settings), "setting");
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
  if (seconds_since(reported_) < 1) return;
  reported_ = std::chrono::steady_clock::now();
  std::cerr << fmt::format("shardproof: searching, {} cases after {:.0f} s\n", endings_.size(),
                           seconds_since(start_));
}

}  // namespace shardproof::sim::explore
