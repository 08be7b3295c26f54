#include "sim/uses/recorded/recorded_judgement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "base/count_of.h"
#include "base/error.h"
#include "sim/case/record/magnitude.h"
#include "sim/judge/diff/addends.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/verdict/findings.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"
#include "sim/uses/recorded/hashes.h"
#include "sim/uses/recorded/layers.h"
#include "sim/uses/recorded/note.h"
#include "sim/uses/recorded/piece_judge.h"
#include "sim/uses/recorded/placement.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
namespace {

std::string one_rank_alone(const RecordedRun& run, const RecordedRun& reference) {
  if (run.world_size > 1 || reference.world_size > 1) return "";
  return "this run has one rank, as the golden has: nothing of a sharding is judged";
}

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

// The part of a run that another one repeats, which resumed after `step` of its steps: the state
// after that step becomes the start, and steps count from there.
void start_after(int64_t step, RecordedRun& run) {
  const auto is_before = [step](const RecordedPiece& piece) {
    const bool is_state = piece.kind == ObservationKind::kParameter ||
                          piece.kind == ObservationKind::kBuffer || is_optimizer_state(piece.kind);
    return piece.step < step || (piece.step == step && !is_state);
  };
  std::erase_if(run.pieces, is_before);
  std::erase_if(run.hashes, [step](const auto& hash) { return hash.piece.step <= step; });
  std::erase_if(run.random_states, [step](const auto& state) { return state.piece.step < step; });
  for (RecordedPiece& piece : run.pieces) piece.step -= step;
  for (auto* hashes : {&run.hashes, &run.random_states}) {
    for (RecordedHash& hash : *hashes) hash.piece.step -= step;
  }
  const auto drop_rates = [step](std::vector<double>& rates) {
    rates.erase(rates.begin(), rates.begin() + std::min<int64_t>(step, std::ssize(rates)));
  };
  drop_rates(run.lr);
  for (ParameterGroup& group : run.groups) drop_rates(group.lr);
  run.steps -= step;
  for (RecordedRun& repeat : run.repeats) start_after(step, repeat);
}

void resume_as(const RecordedRun& run, RecordedRun& reference) {
  const int64_t later = run.from_step - reference.from_step;
  if (later == 0) return;
  if (later < 0 || reference.steps <= later) {
    throw_bad_input(
        fmt::format("{} resumes after {} steps, and {} has the steps {} to {}", run.folder,
                    run.from_step, reference.folder, reference.from_step + 1,
                    reference.from_step + reference.steps),
        "give a golden that begins before that step, was not interrupted, and goes on after it");
  }
  start_after(later, reference);
}

// run.json has the steps of rank 0. Where it made fewer than others, that is the finding.
void count_steps(const RecordedRun& reference, RecordedRun& run) {
  if (run.steps >= reference.steps) return;
  const auto made_all = [&](const auto& one) { return one.second == reference.steps; };
  if (std::ranges::any_of(last_steps(run), made_all)) run.steps = reference.steps;
}

// "3", or where ranks differ "3 (rank 1 recorded 2 of 3 steps: ..)".
std::string steps_of(const RecordedRun& run) {
  const std::string fewer = ranks_without_step(run, run.steps, {});
  return std::to_string(run.steps) + (fewer.empty() ? "" : " (" + fewer + ")");
}

void check_same_recording(const RecordedRun& run, const RecordedRun& reference) {
  const auto differ = [&](const std::string& what, const auto& one, const auto& other) {
    if (one == other) return;
    throw_bad_input(fmt::format("{} of {} is {}, of {} it is {}", what, run.folder, one,
                                reference.folder, other),
                    "record both runs with the same script and options");
  };
  if (run.steps != reference.steps)
    differ("the number of recorded steps", steps_of(run), steps_of(reference));
  differ("the selection of parameters (only=)", run.only, reference.only);
  differ("the number of rows (rows=)", run.rows, reference.rows);
}

constexpr const char* kOtherState =
    "what was saved there, or what was loaded here, is not the state after that step";
constexpr const char* kOtherStart =
    "the runs start from different weights; shardproof.load(model, golden) copies the golden's";

// Wrong start parameters are more often another draw than a bug, and of a resumed run any state may
// be wrong at its start.
void explain_start(const RecordedRun& run, judge::Divergence& found) {
  const bool is_resumed = run.from_step > 0;
  if (is_resumed && found.step == 0 && found.kind == ResultKind::kMissing) {
    found.likely = "it was not saved, or what was loaded here lacks it";
  }
  const bool is_state = is_resumed || found.worst.kind == ObservationKind::kParameter;
  if (found.step > 0 || found.kind != ResultKind::kValues || !is_state) return;
  const std::string cause = is_resumed ? kOtherState : kOtherStart;
  found.likely = found.likely.empty() ? cause : found.likely + "; or " + cause;
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

// What training or scoring is for, besides counts, buffers, outputs and own values.
bool is_computed(ObservationKind kind) {
  using enum ObservationKind;
  return kind == kLogprobs || kind == kLoss || kind == kScores || kind == kGradient ||
         kind == kGradNorm || is_stepped(kind);
}

// Counts of steps and learning rates, and of a run with steps its start, do not count as results;
// nor does anything else that is not computed, in a run that has what is.
bool judged_anything(const RecordedRun& run, const judge::CaseResult& result) {
  bool has_computed = false, judged_computed = false, judged_others = false;
  for (const judge::RankReport& report : result.reports) {
    for (const judge::ResultRow& row : report.rows) {
      const bool is_given = row.kind == ObservationKind::kStepCount ||
                            row.kind == ObservationKind::kRate ||
                            (row.phase == Phase::kStep && row.step == 0 && run.steps > 0);
      if (is_given) continue;
      const bool computed = is_computed(row.kind);
      has_computed = has_computed || computed;
      if (row.judged > 0) (computed ? judged_computed : judged_others) = true;
    }
  }
  return judged_computed || (!has_computed && judged_others);
}

// What both runs are demanded to have, and the reference has in no form to compare with.
void leave_open(const RecordedRun& run, const Reference& golden, judge::Account& account) {
  for (const auto& [name, left_out] : golden.left_out) {
    if (left_out.kind != ObservationKind::kLoss && left_out.kind != ObservationKind::kLogprobs) {
      continue;
    }
    for (const int64_t step : left_out.steps) {
      const bool here = std::ranges::any_of(run.pieces, [&](const RecordedPiece& piece) {
        return piece.step == step && piece.name == name;
      });
      if (!here) continue;
      ++account.all_tensors;
      account.unresolved.push_back({.tensor = name, .step = step, .reason = kNotWhole});
    }
  }
}

void set_verdict(const RecordedRun& run, const Reference& golden, judge::CaseResult& result) {
  if (result.divergence) explain_start(run, *result.divergence);
  judge::conclude(result);
  leave_open(run, golden, result.account);
  judge::Grounds& grounds = result.account.grounds;
  grounds.trains = run.steps > 0 && !run.settings.empty();
  std::string nothing;  // why a match would show nothing
  if (!run.is_file && !grounds.scores_something) {
    nothing = judge::zeros_text(grounds);
    if (nothing.empty() && grounds.trains && !has_gradients(run) && !has_moved(run)) {
      nothing = "no step has a gradient and no parameter moves, although an optimizer is recorded";
    }
    nothing = nothing.empty() ? judge::roundings_text(grounds)
                              : nothing +
                                    "; record steps in which tokens count, and call "
                                    "rec.gradients() before they are set to zero";
  }
  if (result.verdict == Verdict::kMatch && !judged_anything(run, result)) {
    result.verdict = Verdict::kRefused;
    result.kind = ResultKind::kUnresolved;
    const auto& unresolved = result.account.unresolved;
    result.message =
        "no value could be judged: " +
        (unresolved.empty() ? std::string("the runs have no tensors") : unresolved.front().reason) +
        "; copies on several ranks are equal";
  } else if (result.verdict == Verdict::kMatch && !nothing.empty()) {
    result.verdict = Verdict::kBadInput;
    result.kind = ResultKind::kBadInput;
    result.message = nothing;
  }
  result.as_expected = result.verdict == Verdict::kMatch;
}

using Name = std::tuple<int64_t, Phase, std::string>;  // with its step

Name name_of(const judge::ResultRow& row) { return {row.step, row.phase, row.name}; }

judge::GoldenPosition stage_of(const judge::ResultRow& row) {
  return judge::golden_position(row.step, row.phase,
                                place_in_phase(row.phase, row.kind, row.global_shape.empty()));
}

// When the rank computed the tensor; unset when not known.
std::map<Name, int64_t> orders_of(const RecordedRun& run, int64_t rank) {
  std::map<Name, int64_t> orders;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.rank == rank && piece.order >= 0) {
      orders.emplace(Name{piece.step, piece.phase, piece.name}, piece.order);
    }
  }
  return orders;
}

// The last tensor that the finding's rank computed before it, of those that are right there: by
// step and phase, and within these by RecordedPiece::order. A tensor whose order is not known is
// named only where its step or phase tells that it came before. "loss of step 1" for another step
// than the finding's; "" for none, and for start parameters.
std::string last_right(const RecordedRun& run, const std::vector<judge::RankReport>& reports,
                       const judge::Divergence& found) {
  const judge::ResultRow& finding = found.worst;
  const auto rank = static_cast<size_t>(finding.rank);
  if (found.ranks.empty() || finding.order < 0 || rank >= reports.size()) return "";
  const std::map<Name, int64_t> orders = orders_of(run, finding.rank);
  const auto order_of = [&](const judge::ResultRow& row) {
    const auto known = orders.find(name_of(row));
    return known == orders.end() ? -1 : known->second;
  };
  std::set<Name> wrong;
  for (const judge::ResultRow& row : reports[rank].rows) {
    if (row.outcome != judge::Outcome::kMatch || row.partial) wrong.insert(name_of(row));
  }
  const auto here = std::pair(stage_of(finding), order_of(finding));
  std::optional<std::pair<judge::GoldenPosition, int64_t>> latest;
  const judge::ResultRow* last = nullptr;
  for (const judge::ResultRow& row : reports[rank].rows) {
    if (row.step == 0 || wrong.contains(name_of(row))) continue;
    const auto there = std::pair(stage_of(row), order_of(row));
    const bool same_stage = there.first == here.first;
    if (same_stage && (there.second < 0 || here.second < 0)) continue;
    if (!(there < here) || (latest && there < *latest)) continue;
    latest = there;
    last = &row;
  }
  if (!last) return "";
  return last->step == finding.step ? last->name
                                    : fmt::format("{} of step {}", last->name, last->step);
}

}  // namespace

RecordedJudgement judge_recorded_run(RecordedRun run, RecordedRun reference,
                                     const Progress& progress) {
  resume_as(run, reference);
  count_steps(reference, run);
  check_same_recording(run, reference);
  for (const RecordedRun& repeat : reference.repeats) check_same_recording(repeat, reference);
  split_layers(run, reference);
  const Reference golden = make_reference(reference, run.precision);
  place_unknown_pieces(run, golden);
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
  set_verdict(run, golden, result);
  if (result.verdict == Verdict::kMatch) {
    result.message = settings_that_nothing_judged(run, golden, result.reports);
    result.as_expected = result.message.empty();
    if (!result.as_expected) {
      result.verdict = Verdict::kMismatch;
      result.kind = ResultKind::kMetrics;
    }
  }
  if (result.divergence) {
    out.also = other_wrong_gradients(result.reports, result.divergence->step);
  }
  result.spec.precision = run.precision;  // spec_of() has the one that it was judged in
  if (run.is_file) {                      // what it lacks is said by lacking_answers()
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
  const std::string advice = result.divergence ? advice_on(run, golden, *result.divergence) : "";
  for (const std::string& more :
       {one_rank_alone(run, reference), without_gradients(run), uncut_batch(run, reference),
        hashes.note, compare_random_states(run, reference), advice}) {
    if (!more.empty()) out.note += (out.note.empty() ? "" : "; ") + more;
  }
  return out;
}

}  // namespace shardproof::sim::recorded
