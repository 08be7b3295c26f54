#include "sim/judge/verdict/fault_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "sim/judge/diff/result_row.h"
#include "sim/judge/verdict/call_labels.h"

namespace shardproof::sim::judge {
namespace {

using RowPlace = std::pair<bool, GoldenPosition>;  // tensors that the golden lacks come last

RowPlace row_place(const ResultRow& row) {
  return {row.order < 0, golden_position(row.step, row.phase, row.order)};
}

std::string name_of_step(const std::string& name, int64_t step) {
  return step > 0 ? fmt::format("{} of step {}", name, step) : name;
}

std::string detector_of_failure(ResultKind kind) {
  using enum ResultKind;
  static const std::map<ResultKind, std::string> detectors = {
      {kDisagreement, "matching"}, {kDeadlock, "matching"}, {kNeverWaited, "matching"},
      {kInFlight, "digest"},       {kHung, "watchdog"},     {kDied, "process"},
      {kThrew, "exception"}};
  const auto found = detectors.find(kind);
  return found == detectors.end() ? "" : found->second;
}

std::string detector_of_row(const ResultRow& row) {
  if (row.kind == ObservationKind::kGradNorm) return "norm";
  return row.phase == Phase::kRecompute ? "digest" : "values";
}

std::string detector_of_divergence(const Divergence& found) {
  if (found.kind == ResultKind::kReplicas) return "replicas";
  if (found.kind == ResultKind::kMissing) return "census";
  return detector_of_row(found.worst);
}

// Finds the first observation at which copies that must be equal differ.
class Copies {
 public:
  void add(const ResultRow& row) {
    if (!row.compares_replicas || row.replicas.size() < 2 || !row.problem.empty()) return;
    const int64_t time =
        times_[{row_place(row), row.rank, row.microbatch, row.tokens, row.partial}]++;
    const auto [copy, is_new] = digests_.try_emplace(
        {row_place(row), row.microbatch, row.tokens, row.replicas, row.partial, time}, row.digest);
    if (is_new || copy->second == row.digest) return;
    if (!first_ || row_place(row) < row_place(*first_)) first_ = &row;
  }
  const ResultRow* first() const { return first_; }

 private:
  std::map<std::tuple<RowPlace, int64_t, int64_t, uint64_t, bool>, int64_t> times_;
  std::map<std::tuple<RowPlace, int64_t, uint64_t, RankList, bool, int64_t>, uint64_t> digests_;
  const ResultRow* first_ = nullptr;
};

// The first wrong row of each detector, in the order in which the detectors could see it.
std::vector<Detection> detections_in(const CaseResult& result) {
  std::map<std::string, const ResultRow*> firsts;
  Copies copies;
  for (const RankReport& report : result.reports) {
    for (const ResultRow& row : report.rows) {
      copies.add(row);
      if (!row.is_wrong()) continue;
      const ResultRow*& first = firsts[detector_of_row(row)];
      if (first == nullptr || row_place(row) < row_place(*first)) first = &row;
    }
  }
  if (copies.first() != nullptr) firsts["replicas"] = copies.first();
  std::vector<std::pair<std::string, const ResultRow*>> ordered(firsts.begin(), firsts.end());
  const std::string leading =
      result.divergence ? detector_of_divergence(*result.divergence) : std::string();
  std::stable_sort(ordered.begin(), ordered.end(), [&](const auto& a, const auto& b) {
    if ((a.first == leading) != (b.first == leading)) return a.first == leading;
    return row_place(*a.second) < row_place(*b.second);
  });
  std::vector<Detection> detections;
  for (const auto& [detector, row] : ordered) {
    detections.push_back({detector, row->step, row->name});
  }
  const bool seen = std::any_of(detections.begin(), detections.end(),
                                [&](const Detection& entry) { return entry.detector == leading; });
  if (!leading.empty() && !seen) {
    detections.insert(detections.begin(),
                      {leading, result.divergence->step, result.divergence->tensor});
  }
  return detections;
}

void add_gradients(const CaseResult& result, FaultOutcome& outcome) {
  std::set<RowPlace> all, wrong;
  const ResultRow* first = nullptr;
  const ResultRow* worst = nullptr;
  for (const RankReport& report : result.reports) {
    for (const ResultRow& row : report.rows) {
      if (row.kind != ObservationKind::kGradient) continue;
      all.insert(row_place(row));
      if (!row.is_wrong()) continue;
      wrong.insert(row_place(row));
      if (first == nullptr || row_place(row) < row_place(*first)) first = &row;
      if (worst == nullptr || row.worst_ratio > worst->worst_ratio) worst = &row;
    }
  }
  outcome.gradients = static_cast<int64_t>(all.size());
  outcome.wrong_gradients = static_cast<int64_t>(wrong.size());
  if (first != nullptr) outcome.first_gradient = name_of_step(first->name, first->step);
  if (worst == nullptr) return;
  outcome.worst_gradient = name_of_step(worst->name, worst->step);
  // A row without values has a problem, or is an addend of a wrong sum.
  if (worst->golden_value == worst->actual_value) return;
  outcome.worst_gradient +=
      fmt::format(" (golden {:.6g}, actual {:.6g})", worst->golden_value, worst->actual_value);
}

// Whether the ranks made their first call, or could have made it.
bool ran(const CaseResult& result) {
  return result.verdict == Verdict::kMatch || result.verdict == Verdict::kMismatch ||
         result.verdict == Verdict::kFailed || result.kind == ResultKind::kFault;
}

std::string selection_text(const FaultSpec& fault) {
  std::string text = fault.op.empty() ? "calls" : fault.op + " calls";
  if (!fault.axis.empty()) text += " along " + fault.axis;
  if (!fault.label.empty()) text += " labelled '" + fault.label + "'";
  if (fault.step > 0) text += fmt::format(" in step {}", fault.step);
  return text;
}

const FaultNote* note_of(const CaseResult& result, size_t index) {
  for (const FaultNote& note : result.outcome.faults) {
    if (note.index == static_cast<int64_t>(index)) return &note;
  }
  return nullptr;
}

// The labels that the fault's rank used, where no call fitted the fault's own.
std::string labels_text(const CaseResult& result, const FaultSpec& fault, const FaultNote& note) {
  if (fault.label.empty() || note.matches > 0) return "";
  std::vector<std::string> labels;
  for (const RankReport& report : result.reports) {
    if (report.rank != fault.rank) continue;
    for (const std::string& call : report.calls) labels.push_back(label_of(call));
  }
  if (labels.empty()) return "";
  return fmt::format("; the labels of its calls are {} (`shardproof calls` lists all calls)",
                     nearest_labels(fault.label, labels));
}

std::string never_fired(const CaseResult& result, const FaultSpec& fault, const FaultNote* note) {
  std::string text = fmt::format("the fault {} on rank {} never acted", fault.kind, fault.rank);
  if (note == nullptr) return text + ": the case ended before its rank could say why";
  if (!note->problem.empty()) return text + ": " + note->problem;
  if (fault.kind == FaultKind::kSilence) {
    return text +
           fmt::format(
               ": rank {} observed no tensor of the golden from step {} on whose name holds '{}'",
               fault.rank, fault.step, fault.label);
  }
  return text +
         fmt::format(
             ": rank {} made {} calls, {} of them are {} at which a {} can act, and "
             "at_call is {} (from 0)",
             fault.rank, note->calls, note->matches, selection_text(fault), fault.kind,
             fault.at_call) +
         labels_text(result, fault, *note);
}

std::string fault_text(const FaultSpec& fault, const FaultNote* note) {
  std::string text = fmt::format("{} on rank {}", fault.kind, fault.rank);
  if (note == nullptr || !note->fired) return text + " never acted";
  if (!note->effect.empty()) text += " (" + note->effect + ")";
  if (note->step > 0) text += fmt::format(" in step {}", note->step);
  return text + ", at " + note->call;
}

std::string gradients_text(const FaultOutcome& outcome) {
  if (outcome.gradients == 0) return "no gradient was compared";
  std::string text =
      fmt::format("{} of {} gradients are wrong", outcome.wrong_gradients, outcome.gradients);
  if (outcome.wrong_gradients == 0) return text;
  return text + ", the first " + outcome.first_gradient + ", the worst " + outcome.worst_gradient;
}

}  // namespace

FaultOutcome fault_outcome(const CaseResult& result) {
  FaultOutcome outcome;
  for (const RankEnding& ending : result.endings) {
    outcome.faults.insert(outcome.faults.end(), ending.faults.begin(), ending.faults.end());
  }
  if (result.verdict == Verdict::kMismatch) {
    outcome.detections = detections_in(result);
    if (outcome.detections.empty() && result.kind != ResultKind::kDigest) {
      outcome.detections = {{"matching", 0, name_of(result.kind)}};
    }
  } else if (result.verdict == Verdict::kFailed) {
    const std::string detector = detector_of_failure(result.kind);
    int64_t step = 0;
    for (const FaultNote& note : outcome.faults) step = std::max(step, note.step);
    if (!detector.empty()) outcome.detections.push_back({detector, step, name_of(result.kind)});
  }
  if (!result.digests.empty() && result.verdict != Verdict::kRefused) {
    const DigestFinding& first = result.digests.front();
    outcome.detections.push_back({"digest", first.step, describe(first.made)});
  }
  add_gradients(result, outcome);
  return outcome;
}

std::string first_detector(const FaultOutcome& outcome) {
  return outcome.detections.empty() ? "none" : outcome.detections.front().detector;
}

std::string detectors_text(const FaultOutcome& outcome) {
  std::string text;
  for (const Detection& seen : outcome.detections) {
    text += text.empty() ? "" : ", then ";
    text += seen.detector;
    if (seen.step > 0) text += fmt::format(" at step {}", seen.step);
    text += " (" + seen.what + ")";
  }
  return text.empty() ? "none" : text;
}

std::string faults_that_never_fired(const CaseResult& result) {
  if (!ran(result)) return "";
  std::string text;
  for (size_t i = 0; i < result.spec.faults.size(); ++i) {
    const FaultNote* note = note_of(result, i);
    if (note != nullptr && note->fired) continue;
    text += (text.empty() ? "" : "\n") + never_fired(result, result.spec.faults[i], note);
  }
  return text;
}

std::string faults_text(const CaseResult& result) {
  if (result.spec.faults.empty() || !ran(result)) return "";
  std::string text;
  for (size_t i = 0; i < result.spec.faults.size(); ++i) {
    text += fault_text(result.spec.faults[i], note_of(result, i)) + "\n";
  }
  return text + "seen by " + detectors_text(result.outcome) + "\n" + gradients_text(result.outcome);
}

}  // namespace shardproof::sim::judge
