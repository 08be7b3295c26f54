// What control says of a rank whose ending it did not hear from the rank itself.
#include <fmt/format.h>

#include <algorithm>

#include "sim/world/launch/world.h"
#include "sim/world/process/process_clock.h"

namespace shardproof::sim::world {
namespace {

constexpr int kLinesOfOutput = 5, kLinesPrinted = 100;  // in a message; in the log

}  // namespace

void World::rank_died(int64_t rank, size_t worker, const std::string& how) {
  if (endings_[static_cast<size_t>(rank)]) return;
  const std::string output = last_lines(workers_[worker]->output(), kLinesOfOutput);
  set_ending(rank, ResultKind::kDied,
             fmt::format("its process {}{}{}", how,
                         output.empty() ? "" : "; the last lines it printed:\n", output));
  if (all_ended()) return finish();
  settle_after(kGraceAfterRoot);
}

void World::emulated_world_died(const std::string& how) {
  const std::string output = last_lines(workers_[0]->output(), kLinesOfOutput);
  const int64_t culprit = board_.crashed_rank();
  const std::string fact =
      fmt::format("the process of the emulated world {}{}", how,
                  culprit < 0 ? "" : fmt::format(" on the thread of rank {}", culprit));
  const std::string quote = output.empty() ? "" : "; the last lines it printed:\n" + output;
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    if (endings_[static_cast<size_t>(rank)]) continue;
    const bool guilty = culprit < 0 || culprit == rank;
    set_ending(rank, guilty ? ResultKind::kDied : ResultKind::kAborted,
               fact + (guilty ? quote : ""));
  }
  finish();
}

void World::set_ending(int64_t rank, ResultKind kind, const std::string& message) {
  auto& ending = endings_[static_cast<size_t>(rank)];
  if (ending) return;
  ending = {.rank = rank, .kind = kind, .message = message, .last_call = last_call(rank)};
}

std::string World::last_call(int64_t rank) const {
  const std::string line = matcher_ ? matcher_->last_call(rank) : "";
  return line.empty() ? board_.last_label(rank) : line;
}

std::string World::root_cause() const {
  const RankEnding* consequence = nullptr;
  for (const auto& ending : endings_) {
    if (!ending || ending->kind == ResultKind::kFinished) continue;
    if (ending->kind != ResultKind::kAborted)
      return fmt::format("rank {} ended as {}", ending->rank, ending->kind);
    consequence = &*ending;
  }
  return consequence ? fmt::format("rank {} was aborted", consequence->rank)
                     : "the run was interrupted";
}

// Ranks on a node whose link is cut or slow are the cause; those of other nodes wait for them.
bool World::hung_by_links(const std::string& why) {
  const auto troubles = network_ ? network_->troubles() : std::vector<NodeNetwork::Trouble>();
  for (const NodeNetwork::Trouble& trouble : troubles) {
    const int64_t first = trouble.node * key_.ranks_per_node;
    for (int64_t rank = first; rank < first + key_.ranks_per_node; ++rank) {
      set_ending(rank, ResultKind::kHung, trouble.text + "; " + why);
    }
  }
  return !troubles.empty();
}

// What a rank that failed first may not know: Gloo says only that a connection has gone.
void World::add_trouble_of_links() {
  const bool threw = std::any_of(endings_.begin(), endings_.end(), [](const auto& ending) {
    return ending->kind == ResultKind::kThrew;
  });
  if (!network_ || !threw) return;
  std::string found;
  for (const NodeNetwork::Trouble& trouble : network_->troubles()) found += "; " + trouble.text;
  for (auto& ending : endings_) {
    if (ending->kind == ResultKind::kThrew) ending->message += found;
  }
}

// A rank that ended before it could report its faults has reported each one when it acted.
void World::add_faults(RankEnding& ending) const {
  if (!ending.faults.empty()) return;
  for (const auto& [rank, note] : faults_) {
    if (rank == ending.rank) ending.faults.push_back(note);
  }
}

// The ranks of an emulated world print into one stream: it stands at the first that failed itself.
void World::add_printed(std::vector<RankEnding>& endings) const {
  for (RankEnding& ending : endings) {
    const bool well = ending.kind == ResultKind::kFinished || is_refusal(ending);
    if (well || (!in_processes() && ending.kind == ResultKind::kAborted)) continue;
    const size_t worker = in_processes() ? static_cast<size_t>(ending.rank) : 0;
    ending.printed = last_lines(workers_[worker]->output(), kLinesPrinted);
    if (!in_processes()) return;
  }
}

}  // namespace shardproof::sim::world
