#include "sim/uses/recorded/note.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/count_of.h"
#include "sim/case/record/magnitude.h"

namespace shardproof::sim::recorded {
namespace {

// Names of one kind of omission: "not compared, because ..: a, b and 5 more".
std::string omission(const std::string& why, const std::set<std::string>& names) {
  constexpr size_t kListed = 6;
  if (names.empty()) return "";
  const size_t shown = std::min(kListed, names.size());
  std::string text = fmt::format("not compared, {}: {}", why,
                                 fmt::join(names.begin(), std::next(names.begin(), shown), ", "));
  return names.size() > shown ? text + fmt::format(" and {} more", names.size() - shown) : text;
}

// The tensors of a run, by name, with the steps in which it has them.
using Recorded = std::map<std::string, std::set<std::pair<Phase, int64_t>>>;

std::string of_steps(const std::string& name, const std::set<int64_t>& steps) {
  return fmt::format("{} of step{} {}", name, steps.size() > 1 ? "s" : "", fmt::join(steps, ", "));
}

// What `some` has and `other` lacks: "loss", or "loss of steps 2, 3" where it has it in others.
std::set<std::string> lacked(const Recorded& some, const Recorded& other,
                             const std::function<bool(const std::string&)>& is_known) {
  std::set<std::string> found;
  for (const auto& [name, places] : some) {
    if (is_known(name)) continue;
    const auto there = other.find(name);
    if (there == other.end()) {
      found.insert(name);
      continue;
    }
    std::set<int64_t> steps;
    for (const auto& place : places) {
      if (!there->second.contains(place)) steps.insert(place.second);
    }
    if (!steps.empty()) found.insert(of_steps(name, steps));
  }
  return found;
}

// "act.m of step 1 (16 of 32 elements)", for each tensor of which the ranks have a part together.
std::set<std::string> parts_of(const RecordedRun& run, const Reference& golden) {
  using Part = std::tuple<int64_t, int64_t, std::vector<int64_t>, std::vector<int64_t>>;
  std::map<std::tuple<int64_t, Phase, std::string>, std::map<Part, int64_t>> held;
  for (const RecordedPiece& piece : run.pieces) {
    const Place& place = piece.place;
    held[{piece.step, piece.phase, piece.name}]
        [{place.begin, place.end, place.offset, piece.shape}] = piece.values.numel();
  }
  std::set<std::string> found;
  for (const GoldenTensor& tensor : golden.record.tensors()) {
    const auto parts = held.find({tensor.step, tensor.phase, tensor.name});
    if (parts == held.end()) continue;
    int64_t elements = 0;
    for (const auto& [part, count] : parts->second) elements += count;
    if (elements >= tensor.value.numel()) continue;
    found.insert(fmt::format("{} of step {} ({} of {})", tensor.name, tensor.step, elements,
                             count_of(tensor.value.numel(), "element")));
  }
  return found;
}

}  // namespace

std::string note_of(const RecordedRun& run, const Reference& golden) {
  Recorded here, there;
  for (const RecordedPiece& piece : run.pieces) {
    here[piece.name].insert({piece.phase, piece.step});
  }
  for (const GoldenTensor& tensor : golden.record.tensors()) {
    there[tensor.name].insert({tensor.phase, tensor.step});
  }
  const std::set<std::string> extras =
      lacked(here, there, [&](const std::string& name) { return golden.left_out.contains(name); });
  const std::set<std::string> lacking = lacked(there, here, [&](const std::string& name) {
    return run.not_compared.contains(name) || name == "lr";
  });
  std::set<std::string> left_out;
  for (const auto& [name, one] : golden.left_out) {
    left_out.insert(there.contains(name) ? of_steps(name, one.steps) : name);
  }
  std::string note;
  if (run.from_step > 0) {
    note = fmt::format(
        "this run resumed after step {0} of the golden, so that its step 1 is step "
        "{1} there",
        run.from_step, run.from_step + 1);
  }
  for (const std::string& line :
       {omission("because nothing says which part of it a rank holds (layouts= of record does)",
                 run.not_compared),
        omission(fmt::format("because {}", kNotWhole), left_out),
        omission("because only this run recorded it", extras),
        omission("because only the reference recorded it", lacking),
        omission("because the ranks recorded a part of it", parts_of(run, golden))}) {
    if (!line.empty()) note += (note.empty() ? "" : "; ") + line;
  }
  return note;
}

std::string also_named(const RecordedPiece& piece, const GoldenRecord& golden,
                       const std::string& near) {
  const bool is_matrix = piece.kind == ObservationKind::kParameter && piece.shape.size() >= 2;
  for (const GoldenTensor& tensor : golden.tensors()) {
    const bool same = is_matrix && tensor.kind == piece.kind && tensor.step == piece.step &&
                      tensor.value.sizes() == piece.values.sizes();
    if (!same || distance_between(tensor.value, piece.values).largest != 0) continue;
    return fmt::format("; its values are those of {} (a tied copy keeps that name)", tensor.name);
  }
  return near.empty() ? "" : "; the nearest one is " + near;
}

}  // namespace shardproof::sim::recorded
