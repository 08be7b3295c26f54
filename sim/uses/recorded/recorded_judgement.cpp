#include "sim/uses/recorded/recorded_judgement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/addends.h"
#include "sim/judge/verdict/findings.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/hashes.h"
#include "sim/uses/recorded/last_right.h"
#include "sim/uses/recorded/layers.h"
#include "sim/uses/recorded/piece_judge.h"
#include "sim/uses/recorded/placement.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
namespace {

// What the judge asks of a case: a training run on as many ranks. The optimizer that sets
// allowances is the reference's. Without enough repeats no value below float64 is judged, and the
// others are those of a float64 run.
CaseSpec spec_of(const RecordedRun& run, const RecordedRun& reference, const Reference& golden) {
  CaseSpec spec;
  spec.name = run.folder;
  spec.steps = run.steps;
  if (golden.is_scattered()) spec.precision = run.precision;
  spec.parallel.dp = run.world_size;
  spec.optimizer = reference.optimizer;
  return spec;
}

void check_same_recording(const RecordedRun& run, const RecordedRun& reference) {
  const auto differ = [&](const std::string& what, const auto& one, const auto& other) {
    if (one == other) return;
    throw_bad_input(fmt::format("{} of {} is {}, of {} it is {}", what, run.folder, one,
                                reference.folder, other),
                    "record both runs with the same script and options");
  };
  differ("the number of recorded steps", run.steps, reference.steps);
  differ("the selection of parameters (only=)", run.only, reference.only);
  differ("the number of rows (rows=)", run.rows, reference.rows);
}

constexpr const char* kOtherStart =
    "the runs start from different weights; shardproof.load(model, golden) copies the golden's";

// Wrong start parameters are more often another draw than a bug.
void explain_start(judge::Divergence& found) {
  if (found.step > 0 || found.kind != ResultKind::kValues ||
      found.worst.kind != ObservationKind::kParameter)
    return;
  found.likely = found.likely.empty() ? kOtherStart : found.likely + "; or " + kOtherStart;
}

// Whether an output that ranks hold unequally was computed before the first wrong value. Of the
// forward of one step the value says more.
bool comes_before(const judge::Divergence& output, const std::optional<judge::Divergence>& value) {
  if (!value || output.step != value->step) return !value || output.step < value->step;
  return value->phase != Phase::kForward;
}

void mark_means(const RecordedRun& run,
                std::map<judge::GoldenPosition, judge::WrongAddends>& addends) {
  for (auto& [position, sums] : addends) {
    if (sums.wrong.empty()) continue;
    const judge::ResultRow& row = sums.wrong.front();
    sums.is_mean = std::any_of(run.pieces.begin(), run.pieces.end(), [&](const auto& piece) {
      return piece.is_mean && piece.name == row.name && piece.step == row.step &&
             piece.phase == row.phase;
    });
  }
}

void set_verdict(judge::CaseResult& result) {
  if (result.divergence) explain_start(*result.divergence);
  judge::conclude(result);
  if (result.verdict == Verdict::kMatch && result.account.elements.judged == 0) {
    result.verdict = Verdict::kRefused;
    result.kind = ResultKind::kUnresolved;
    result.message =
        "no value could be judged: " +
        (result.account.unresolved.empty() ? std::string("the runs have no tensors")
                                           : result.account.unresolved.front().reason) +
        "; copies on several ranks are equal";
  }
  result.as_expected = result.verdict == Verdict::kMatch;
}

// Names of one kind of omission: "not compared, because ..: a, b and 5 more".
std::string omission(const char* why, const std::set<std::string>& names) {
  constexpr size_t kListed = 6;
  if (names.empty()) return "";
  const size_t shown = std::min(kListed, names.size());
  std::string text = fmt::format("not compared, {}: {}", why,
                                 fmt::join(names.begin(), std::next(names.begin(), shown), ", "));
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

std::string note_of(const RecordedRun& run, const Reference& golden) {
  std::set<std::string> here, there, extras, lacking;
  for (const RecordedPiece& piece : run.pieces) here.insert(piece.name);
  for (const GoldenTensor& tensor : golden.record.tensors()) there.insert(tensor.name);
  for (const std::string& name : here) {
    if (!there.contains(name) && !golden.left_out.contains(name)) extras.insert(name);
  }
  for (const std::string& name : there) {
    const bool left_out = run.not_compared.contains(name) || name == "lr";
    if (!here.contains(name) && !left_out) lacking.insert(name);
  }
  std::string note;
  for (const std::string& line :
       {omission("because nothing says which part of it a rank holds", run.not_compared),
        omission(
            "because the reference's pieces do not make it whole, or are of single microbatches",
            golden.left_out),
        omission("because only this run recorded it", extras),
        omission("because only the reference recorded it", lacking)}) {
    if (!line.empty()) note += (note.empty() ? "" : "; ") + line;
  }
  return note;
}

}  // namespace

RecordedJudgement judge_recorded_run(RecordedRun run, RecordedRun reference,
                                     const Progress& progress) {
  check_same_recording(run, reference);
  for (const RecordedRun& repeat : reference.repeats) check_same_recording(repeat, reference);
  split_layers(run, reference);
  const Reference golden = make_reference(reference, run.precision);
  place_unknown_pieces(run, golden.record);
  RecordedJudgement out;
  out.mesh = run.mesh;
  judge::CaseResult& result = out.result;
  result.spec = spec_of(run, reference, golden);
  WidenedSums widened;
  result.reports = judge_pieces(run, result.spec, golden, progress, widened);
  const StepMeshes meshes(run.mesh);
  auto addends = judge::settle_addends(meshes, result.reports);
  settle_widened_sums(widened, result.reports);
  mark_means(run, addends);
  judge::add_totals(result);
  result.divergence = judge::first_divergence(result.spec, meshes, result.reports, addends);
  if (result.divergence) {
    result.divergence->last_good = last_right(run, result.reports, *result.divergence);
    add_clue(run, golden, *result.divergence);
  }
  HashJudgement hashes = judge_hashes(run, reference);
  if (hashes.divergence && comes_before(*hashes.divergence, result.divergence)) {
    result.divergence = std::move(hashes.divergence);
  }
  set_verdict(result);
  if (result.divergence) {
    out.also = other_wrong_gradients(result.reports, result.divergence->step);
  }
  if (run.is_file) {  // what it lacks is said by lacking_answers()
    out.against = reference.folder;
    return out;
  }
  std::string ranks =
      reference.world_size == 1 ? "one rank" : reference.mesh.describe() + ", not against one rank";
  if (golden.repeats > 0) {
    ranks += fmt::format(" and {} repeats of it in {}", golden.repeats, run.precision);
  }
  out.against = fmt::format("{} ({})", reference.folder, ranks);
  out.note = note_of(run, golden);
  for (const std::string& more : {hashes.note, compare_random_states(run, reference)}) {
    if (!more.empty()) out.note += (out.note.empty() ? "" : "; ") + more;
  }
  return out;
}

}  // namespace shardproof::sim::recorded
