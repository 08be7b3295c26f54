#include "sim/uses/explore/shrink.h"

#include <fmt/format.h>

#include <algorithm>

#include "sim/uses/explore/signature.h"
#include "sim/uses/explore/smaller_cases.h"

namespace shardproof::sim::explore {

namespace {

constexpr size_t kMostCandidates = 16;  // of one round, so that the largest gains come first

// The search: what is known of each case, and the smallest one that fails the same way.
class Shrinking {
 public:
  Shrinking(CaseSettings settings, const std::string& signature, const Signatures& run,
            const std::function<bool()>& in_time)
      : signature_(signature), run_(run), in_time_(in_time) {
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
    std::vector<Edit> edits = smaller_cases(found_.settings), joins;
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
    const std::vector<Edit> edits = smaller_cases(found_.settings);
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
    const std::vector<Edit> edits = edits_without_axes(found_.settings);
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
    found_.cases_run += static_cast<int64_t>(cases.size());
    return run_(cases);
  }

  std::vector<Edit> those_that_fail(const std::vector<Edit>& edits) {
    const std::vector<std::string> signatures = signatures_of(edits);
    std::vector<Edit> same;
    for (size_t i = 0; i < edits.size(); ++i) {
      if (signatures[i] == signature_) {
        same.push_back(edits[i]);
      } else {
        found_.kept.push_back(
            fmt::format("{} ({})", edits[i].what, signatures[i].empty() ? "match" : signatures[i]));
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
  Shrunk found_ = {};
};

}  // namespace

Shrunk shrink_case(CaseSettings settings, const std::string& signature, const Signatures& run,
                   const std::function<bool()>& in_time) {
  return Shrinking(std::move(settings), signature, run, in_time).search();
}

}  // namespace shardproof::sim::explore
