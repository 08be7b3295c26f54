#include "sim/world/launch/process_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/mapped_pages.h"
#include "sim/world/launch/interrupts.h"

namespace shardproof::sim::world {
namespace {

// How often control looks for call lines in shared memory while a case runs; before it takes in
// anything else of a rank it looks, too.
constexpr std::chrono::milliseconds kLinesPeriod{5};

// Of the store at which process ranks meet. Only what is written takes memory.
constexpr size_t kStoreBytes = size_t{256} << 20;

}  // namespace

void ProcessWorld::begin(const CaseSpec& spec) {
  mesh_ranks_ = std::min(spec.parallel.ranks(), key_.world_size);
  matcher_.emplace(key_.world_size);
}

void ProcessWorld::on_line(const CallLine& line) {
  if (const auto finding = matcher_->line(line)) found(*finding);
}

// A rank that refused while another has gone on to a call with it: the other waits for nothing.
// That a rank waits for weights says nothing of the mesh, whose other ranks may refuse later.
bool ProcessWorld::looks_stuck() {
  const bool mesh_ended = std::all_of(endings_.begin(), endings_.begin() + mesh_ranks_,
                                      [](const auto& ending) { return ending.has_value(); });
  const int64_t end = mesh_ended ? key_.world_size : mesh_ranks_;
  return std::ranges::any_of(endings_, [&](const auto& ending) {
    return ending && is_refusal(*ending) && matcher_->is_awaited(ending->rank, end);
  });
}

void ProcessWorld::worker_died(size_t worker, const std::string& how) {
  const auto rank = static_cast<int64_t>(worker);
  if (has_ended(rank)) return;
  const std::string output = printed_by(worker, kLinesOfOutput);
  set_ending(rank, ResultKind::kDied,
             fmt::format("its process {}{}{}", how,
                         output.empty() ? "" : "; the last lines it printed:\n", output));
  if (all_ended()) return finish();
  settle_after(kGraceAfterRoot);
}

// A rank whose process is stopped holds up all others. Else ranks that wait in a call for others
// are victims; the others are the cause. If all wait, they wait for each other.
void ProcessWorld::hung(const std::string& why) {
  std::vector<int64_t> running;
  std::vector<std::string> waits;
  bool all_wait = true, any_stopped = false;
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    if (has_ended(rank)) continue;
    if (workers_[static_cast<size_t>(rank)]->stopped()) {
      any_stopped = true;
      set_ending(rank, ResultKind::kHung, "its process is stopped by a signal; " + why);
      continue;
    }
    running.push_back(rank);
    waits.push_back(matcher_->wait_of(rank));
    all_wait = all_wait && !waits.back().empty();
  }
  if (any_stopped || hung_by_links(why)) return settle();
  for (size_t i = 0; i < running.size(); ++i) {
    const bool waiting = !waits[i].empty();
    const std::string doing = waiting ? waits[i] : kWaitsForNobody;
    set_ending(running[i],
               !waiting   ? ResultKind::kHung
               : all_wait ? ResultKind::kDeadlock
                          : ResultKind::kAborted,
               doing + "; " + why);
  }
  settle();
}

std::string ProcessWorld::last_call(int64_t rank) const {
  const std::string line = matcher_->last_call(rank);
  return line.empty() ? World::last_call(rank) : line;
}

void ProcessWorld::add_facts(std::vector<RankEnding>& endings) {
  for (RankEnding& ending : endings) {
    if (ended_well(ending)) continue;
    ending.printed = printed_by(static_cast<size_t>(ending.rank), kLinesPrinted);
  }
}

void ForkedWorld::start(Workers& workers) {
  const OwnedFd store = new_memory("shardproof-store", kStoreBytes, "the store of a world");
  const int64_t per_node = key_.ranks_per_node;
  if (per_node > 0) network_.emplace(key_.world_size / per_node, key_.links);
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    if (was_interrupted()) {
      throw_bad_input(fmt::format("interrupted after {} of {} workers", rank, key_.world_size),
                      "start it again");
    }
    WorkerSetup setup{.backend = key_.backend,
                      .device = key_.device,
                      .world_size = key_.world_size,
                      .rank = rank};
    Workers::Shared shared{
        .board = board_.fd(), .store = store.get(), .lines = lines_.fd(), .node = {}};
    if (network_) {
      setup.node = rank / per_node;
      shared.node = network_->place(setup.node);
      setup.gb_per_s = key_.links.gb_per_s;
      setup.listen_host = address_of(setup.node);
    }
    add_worker(workers.start(setup, shared));
  }
}

void ForkedWorld::begin(const CaseSpec& spec) {
  ProcessWorld::begin(spec);
  lines_.clear();
  take_lines_again();
}

void ForkedWorld::take_lines() {
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    while (running_) {
      const std::optional<std::string> text = lines_.take(rank);
      if (!text) break;
      if (const auto line = decode_line(*text)) on_line(*line);
    }
  }
}

void ForkedWorld::take_lines_again() {
  take_lines();
  after(kLinesPeriod, [this] { take_lines_again(); });
}

bool ForkedWorld::looks_stuck() {
  if (network_) network_->look();
  return ProcessWorld::looks_stuck();
}

// Ranks on a node whose link is cut or slow are the cause; those of other nodes wait for them.
bool ForkedWorld::hung_by_links(const std::string& why) {
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
void ForkedWorld::add_facts(std::vector<RankEnding>& endings) {
  ProcessWorld::add_facts(endings);
  const bool threw = std::ranges::any_of(
      endings, [](const RankEnding& ending) { return ending.kind == ResultKind::kThrew; });
  if (!network_ || !threw) return;
  std::string troubles;
  for (const NodeNetwork::Trouble& trouble : network_->troubles()) troubles += "; " + trouble.text;
  for (RankEnding& ending : endings) {
    if (ending.kind == ResultKind::kThrew) ending.message += troubles;
  }
}

void LauncherWorld::take_in(std::vector<std::shared_ptr<WorkerProcess>> ranks) {
  for (auto& rank : ranks) add_worker(std::move(rank));
}

void LauncherWorld::tell(FrameType type, const std::string& text) {
  broken_ = true;
  for (const auto& worker : workers_) worker->send(type, text);
}

void LauncherWorld::end_ranks() { tell(FrameType::kAbort, "the world is made anew"); }

void LauncherWorld::dismiss(int status) { tell(FrameType::kExit, std::to_string(status)); }

bool LauncherWorld::all_gone() const {
  return std::ranges::all_of(workers_, [](const auto& worker) { return worker->ended(); });
}

// Hosts that are cut off are the cause; where all others are, it is control's own, that of rank 0.
bool LauncherWorld::hung_by_links(const std::string& why) {
  const std::string& own = workers_[0]->host();
  std::set<std::string> others, heard;
  for (const auto& worker : workers_) {
    if (worker->host() == own) continue;
    others.insert(worker->host());
    if (!worker->silent()) heard.insert(worker->host());
  }
  const bool alone = others.size() > 1 && heard.empty();
  const std::string trouble =
      alone ? fmt::format("{}, where control is, hears nothing of the {} other hosts; ", own,
                          others.size())
            : "control hears nothing of this rank: its host is cut off or down, or its process "
              "is stopped; ";
  bool any = false;
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    const WorkerProcess& worker = *workers_[static_cast<size_t>(rank)];
    if (has_ended(rank) || !(alone ? worker.host() == own : worker.silent())) continue;
    set_ending(rank, ResultKind::kHung, trouble + why);
    any = true;
  }
  return any;
}

void LauncherWorld::on_frame(size_t worker, Frame frame) {
  if (frame.type == FrameType::kStore) {
    return store_.ask(frame.payload,
                      [to = std::weak_ptr(workers_[worker])](const std::string& answer) {
                        if (const auto rank = to.lock()) rank->send(FrameType::kStore, answer);
                      });
  }
  if (frame.type != FrameType::kCallLine) return World::on_frame(worker, std::move(frame));
  const std::optional<CallLine> line = decode_line(frame.payload);
  if (!line || !running_) return;
  // The rank cannot reach the board.
  if (!line->waiting) board_.entered(static_cast<int64_t>(worker), describe(*line));
  on_line(*line);
}

}  // namespace shardproof::sim::world
