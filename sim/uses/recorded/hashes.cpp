#include "sim/uses/recorded/hashes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "base/count_of.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::recorded {

namespace {

constexpr size_t kMostNamed = 4;

using Hashes = std::vector<const RecordedHash*>;
using OutputKey = std::pair<int64_t, std::string>;  // step and name
using Shapes = std::map<OutputKey, std::vector<int64_t>>;

// The shapes of whole outputs; none from a run of several ranks.
Shapes whole_shapes(const RecordedRun& reference) {
  Shapes shapes;
  if (reference.world_size > 1) return shapes;
  for (const RecordedHash& hash : reference.hashes) {
    shapes.emplace(OutputKey{hash.piece.step, hash.piece.name}, hash.piece.shape);
  }
  return shapes;
}

bool is_known_to_be_whole(const RecordedHash& hash, const Shapes& shapes) {
  const auto whole = shapes.find({hash.piece.step, hash.piece.name});
  if (whole == shapes.end()) return false;
  const std::vector<int64_t>&here = hash.piece.shape, &there = whole->second;
  if (hash.rows < 0) return here == there;
  return here.size() == there.size() && !here.empty() &&
         std::equal(here.begin() + 1, here.end(), there.begin() + 1);
}

// The hashes of one output, by what ranks must have in common to hold the same.
struct Copies {
  std::vector<Hashes> groups;      // of two ranks or more, in the order computed
  std::set<std::string> unplaced;  // names of outputs of which nothing says who holds the same
};

Copies copies_of_outputs(const RecordedRun& run, const RecordedRun& reference) {
  const Shapes shapes = whole_shapes(reference);
  std::map<std::pair<CopyKey, int64_t>, Hashes> by_key;
  Copies copies;
  for (const RecordedHash& hash : run.hashes) {
    const bool placed = hash.piece.place.kind != Place::Kind::kUnknown;
    if (!placed && !is_known_to_be_whole(hash, shapes)) {
      copies.unplaced.insert(hash.piece.name);
      continue;
    }
    by_key[{copy_key(run, hash.piece), placed ? -1 : hash.rows}].push_back(&hash);
  }
  for (auto& [key, group] : by_key) {
    if (group.size() > 1) copies.groups.push_back(std::move(group));
  }
  const auto time = [](const Hashes& group) {
    return std::pair(group.front()->piece.step, group.front()->piece.order);
  };
  std::ranges::stable_sort(copies.groups,
                           [&](const Hashes& a, const Hashes& b) { return time(a) < time(b); });
  return copies;
}

bool differ(const Hashes& group) {
  return std::ranges::any_of(
      group, [&](const RecordedHash* hash) { return hash->digest != group.front()->digest; });
}

judge::Divergence finding_of(const Hashes& group, const std::vector<Hashes>& groups) {
  const RecordedPiece& first = group.front()->piece;
  judge::Divergence found;
  found.tensor = first.name;
  found.phase = Phase::kForward;
  found.step = first.step;
  found.kind = ResultKind::kReplicas;
  std::vector<int64_t> equal;
  for (const RecordedHash* hash : group) {
    (hash->digest == group.front()->digest ? equal : found.ranks).push_back(hash->piece.rank);
  }
  found.worst.rank = found.ranks.front();
  found.worst.global_shape = first.shape;
  int64_t wrong = 0, all = 0;
  for (const Hashes& other : groups) {
    if (other.front()->piece.step != first.step) continue;
    ++all;
    wrong += differ(other) ? 1 : 0;
  }
  found.pattern = fmt::format(
      "its hash on {} is not that of {}, which should hold the same; of {} outputs that ranks "
      "share "
      "in this step, {} differ, and this is the first",
      ranks_text(found.ranks), ranks_text(equal), all, wrong);
  found.likely =
      "an input or parameter of this module differs between these ranks; or its output is an "
      "addend that is summed outside of it, which hashes= should not name";
  return found;
}

std::string not_compared(const std::set<std::string>& names) {
  if (names.empty()) return "";
  std::vector<std::string> shown(names.begin(), names.end());
  const size_t more = shown.size() > kMostNamed ? shown.size() - kMostNamed : 0;
  shown.resize(shown.size() - more);
  return fmt::format("; nothing says which ranks hold the same of {}{}", fmt::join(shown, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

// Of runs with equal meshes: how many hashes are equal, and the first that is not.
std::string beside_reference(const RecordedRun& run, const std::vector<RecordedHash>& hashes,
                             const RecordedRun& reference, const std::vector<RecordedHash>& there) {
  const bool same =
      run.mesh.describe() == reference.mesh.describe() && run.world_size == reference.world_size;
  if (!same || there.empty()) return "";
  using Key = std::tuple<int64_t, CopyKey>;  // rank, and what it holds
  std::map<Key, uint64_t> digests;
  for (const RecordedHash& hash : there) {
    digests.emplace(Key{hash.piece.rank, copy_key(reference, hash.piece)}, hash.digest);
  }
  int64_t compared = 0, equal = 0;
  const RecordedHash* first = nullptr;
  for (const RecordedHash& hash : hashes) {
    const auto found = digests.find({hash.piece.rank, copy_key(run, hash.piece)});
    if (found == digests.end()) continue;
    ++compared;
    equal += found->second == hash.digest ? 1 : 0;
    if (found->second == hash.digest) continue;
    const auto time = [](const RecordedHash& one) {
      return std::pair(one.piece.step, one.piece.order);
    };
    if (!first || time(hash) < time(*first)) first = &hash;
  }
  std::string text = fmt::format("{} of {} are those of the reference", equal, compared);
  if (first) {
    text += fmt::format(", the first that is not is {} of step {} on rank {}", first->piece.name,
                        first->piece.step, first->piece.rank);
  }
  return text;
}

}  // namespace

HashJudgement judge_hashes(const RecordedRun& run, const RecordedRun& reference) {
  HashJudgement out;
  if (run.hashes.empty()) return out;
  const Copies copies = copies_of_outputs(run, reference);
  const auto wrong = std::ranges::find_if(copies.groups, differ);
  if (wrong != copies.groups.end()) out.divergence = finding_of(*wrong, copies.groups);
  const auto unequal = std::ranges::count_if(copies.groups, differ);
  out.note = fmt::format("{} hashes of outputs", run.hashes.size());
  if (!copies.groups.empty()) {
    out.note +=
        fmt::format(": of {} outputs that ranks share, {} differ", copies.groups.size(), unequal);
  }
  const std::string beside = beside_reference(run, run.hashes, reference, reference.hashes);
  out.note += (beside.empty() ? "" : "; " + beside) + not_compared(copies.unplaced);
  return out;
}

std::string compare_random_states(const RecordedRun& run, const RecordedRun& reference) {
  const std::string beside =
      beside_reference(run, run.random_states, reference, reference.random_states);
  return beside.empty() ? "" : "of the states of random generators, " + beside;
}

CopyKey copy_key(const RecordedRun& run, const RecordedPiece& piece) {
  std::vector<int64_t> addend;
  for (const std::string& axis : piece.partial_axes) {
    addend.push_back(run.mesh.coordinate(axis, piece.rank));
  }
  return {record_key(piece.phase, piece.step, piece.name), piece.microbatch, piece.place,
          piece.shape, addend};
}

std::map<CopyKey, std::vector<int64_t>> copies_of(const RecordedRun& run) {
  std::map<CopyKey, std::vector<int64_t>> copies;
  for (const RecordedPiece& piece : run.pieces) {
    std::vector<int64_t>& ranks = copies[copy_key(run, piece)];
    if (ranks.empty() || ranks.back() != piece.rank) ranks.push_back(piece.rank);
  }
  return copies;
}

}  // namespace shardproof::sim::recorded
