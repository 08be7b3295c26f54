#include "sim/world/launch/world.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/shortage.h"
#include "sim/world/launch/interrupts.h"
#include "sim/world/process/ending_codec.h"

namespace shardproof::sim::world {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// As kGraceAfterRoot, where what failed is itself a consequence.
constexpr milliseconds kGraceAfterConsequence{400};
// The time that an emulated world has to stop its ranks after an abort.
constexpr milliseconds kAbortGrace{1500};
// How often control looks for call lines in shared memory while a case runs; before it takes in
// anything else of a rank it looks, too.
constexpr milliseconds kLinesPeriod{5};

// Empty pages for the store at which process ranks meet. Only what is written takes memory.
OwnedFd new_store_pages() {
  constexpr off_t kMost = off_t{256} << 20;
  OwnedFd pages(::memfd_create("shardproof-store", MFD_CLOEXEC));
  if (!pages.valid() || ::ftruncate(pages.get(), kMost) != 0) {
    throw_shortage("no shared memory is left for the store of a world", errno);
  }
  return pages;
}

}  // namespace

World::World(boost::asio::io_context& io, WorldKey key)
    : io_(io), key_(std::move(key)), board_(key_.world_size) {}

std::shared_ptr<World> World::start(boost::asio::io_context& io, Workers& workers, WorldKey key) {
  std::shared_ptr<World> world(new World(io, std::move(key)));
  world->start_workers(workers);
  return world;
}

void World::start_workers(Workers& workers) {
  WorkerSetup setup{
      .backend = key_.backend, .device = key_.device, .world_size = key_.world_size, .rank = -1};
  OwnedFd store;
  if (in_processes()) {
    store = new_store_pages();
    lines_.emplace(key_.world_size);
  }
  const int64_t per_node = key_.ranks_per_node;
  if (per_node > 0) network_.emplace(key_.world_size / per_node, key_.links);
  const int64_t count = in_processes() ? key_.world_size : 1;
  for (int64_t i = 0; i < count; ++i) {
    if (interrupt_came()) {
      throw_bad_input(fmt::format("interrupted after {} of {} workers", i, count),
                      "start it again");
    }
    if (in_processes()) setup.rank = i;
    Workers::Shared shared{.board = board_.fd(), .store = store.get(), .node = {}};
    if (lines_) shared.lines = lines_->fd();
    if (network_) {
      shared.node = network_->place(i / per_node);
      setup.node = i / per_node;
      setup.gb_per_s = key_.links.gb_per_s;
      setup.listen_host = address_of(setup.node);
    }
    workers_.push_back(workers.start(setup, shared));
    listen_to(workers_.size() - 1);
  }
}

std::shared_ptr<World> World::of(boost::asio::io_context& io, WorldKey key,
                                 std::vector<std::shared_ptr<WorkerProcess>> ranks) {
  std::shared_ptr<World> world(new World(io, std::move(key)));
  world->workers_ = std::move(ranks);
  for (size_t rank = 0; rank < world->workers_.size(); ++rank) world->listen_to(rank);
  return world;
}

void World::listen_to(size_t index) {
  const auto self = weak_from_this();
  workers_[index]->start({.on_frame =
                              [self, index](Frame frame) {
                                if (const auto world = self.lock())
                                  world->on_frame(index, std::move(frame));
                              },
                          .on_exit =
                              [self, index](const std::string& how) {
                                if (const auto world = self.lock()) world->on_exit(index, how);
                              }});
}

void World::dismiss(int status) {
  broken_ = true;
  for (const auto& worker : workers_) worker->send(FrameType::kExit, std::to_string(status));
}

void World::end_ranks() {
  broken_ = true;
  for (const auto& worker : workers_) worker->send(FrameType::kAbort, "the world is made anew");
}

bool World::all_gone() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& worker) { return worker->ended(); });
}

void World::run(const CaseSpec& spec, int golden_fd, std::function<void(WorldRun)> done) {
  SHARDPROOF_ASSERT(!running_ && !broken_, "a world that is busy or broken was given a case");
  ++case_number_;
  running_ = true;
  settling_ = abort_sent_ = false;
  done_ = std::move(done);
  hang_s_ = spec.world.hang_s;
  deadline_s_ = spec.world.deadline_s;
  mesh_ranks_ = std::min(spec.parallel.ranks(), key_.world_size);
  hang_rule_ = HangRule(hang_s_);
  if (in_processes()) matcher_.emplace(key_.world_size);
  endings_.assign(static_cast<size_t>(key_.world_size), std::nullopt);
  faults_.clear();
  board_.clear();
  if (lines_) lines_->clear();
  started_ = steady_clock::now();
  deadline_ = Deadline(deadline_s_, usable_cores());
  deadline_.sample(0, cpu_seconds());
  const std::string request = to_json(spec).dump();
  try {
    for (const auto& worker : workers_) {
      worker->forget_output();
      worker->send_request(request, golden_fd);
    }
  } catch (const Error& error) {
    note({.rank = 0, .kind = ResultKind::kBadInput, .message = error.what()});
  }
  tick();
  if (lines_) take_lines_again();
}

template <class Action>
void World::after(milliseconds delay, Action action) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(io_, delay);
  timer->async_wait([timer, self = weak_from_this(), number = case_number_,
                     action](const boost::system::error_code& error) {
    const auto world = self.lock();
    if (!error && world && world->running_ && world->case_number_ == number) action(*world);
  });
}

void World::on_frame(size_t worker, Frame frame) {
  if (frame.type == FrameType::kStore) {
    return store_.ask(frame.payload,
                      [to = std::weak_ptr(workers_[worker])](const std::string& answer) {
                        if (const auto rank = to.lock()) rank->send(FrameType::kStore, answer);
                      });
  }
  if (!running_) return;
  if (frame.type == FrameType::kCallLine) return on_call(worker, frame.payload);
  // Before the lines are taken: one that the fault has spoilt may end the case.
  if (frame.type == FrameType::kFault) return faults_.push_back(decode_fault(frame.payload));
  if (frame.type != FrameType::kEndings) return;
  take_lines();  // they were put before it was sent
  for (RankEnding& ending : decode_endings(frame.payload)) note(std::move(ending));
}

void World::on_call(size_t worker, const std::string& text) {
  const std::optional<CallLine> line = decode_line(text);
  if (!line || !matcher_) return;
  if (workers_[worker]->is_remote() && !line->waiting) {  // it cannot reach the board
    board_.entered(static_cast<int64_t>(worker), describe(*line));
  }
  if (const auto finding = matcher_->line(*line)) found(*finding);
}

void World::take_lines() {
  for (size_t rank = 0; lines_ && rank < workers_.size(); ++rank) {
    while (running_) {
      const std::optional<std::string> line = lines_->take(static_cast<int64_t>(rank));
      if (!line) break;
      on_call(rank, *line);
    }
  }
}

void World::take_lines_again() {
  take_lines();
  after(kLinesPeriod, [](World& world) { world.take_lines_again(); });
}

void World::note(RankEnding ending) {
  const auto rank = static_cast<size_t>(ending.rank);
  SHARDPROOF_ASSERT(rank < endings_.size(), "an ending of a rank outside the world");
  if (!running_ || endings_[rank]) return;
  if (ending.last_call.empty()) ending.last_call = last_call(ending.rank);
  const ResultKind kind = ending.kind;
  const bool refusal = is_refusal(ending) && !ending.shortage;
  endings_[rank] = std::move(ending);
  if (matcher_ && kind == ResultKind::kFinished) {
    if (const auto finding = matcher_->ended(static_cast<int64_t>(rank))) found(*finding);
  }
  if (!running_ || settling_) return;  // settle() finishes, once all that arrived is read
  if (all_ended()) return finish();
  if (kind == ResultKind::kAborted) {
    settle_after(kGraceAfterConsequence);
  } else if (kind != ResultKind::kFinished && !refusal) {
    settle_after(kGraceAfterRoot);
  }  // the others refuse as well, each at its own pace; if not, they wait for this rank: hung
}

// The finding of the matching outranks whatever the ranks threw afterwards.
void World::found(const Finding& finding) {
  for (const int64_t rank : finding.ranks) {
    endings_[static_cast<size_t>(rank)].reset();
    set_ending(rank, enum_of<ResultKind>(finding.code), finding.text());
  }
  for (auto& ending : endings_) {
    if (ending && ending->kind == ResultKind::kThrew) ending->kind = ResultKind::kAborted;
  }
  settle();
}

void World::on_exit(size_t worker, const std::string& how) {
  broken_ = true;
  take_lines();
  if (!running_) return;
  if (in_processes()) {
    rank_died(static_cast<int64_t>(worker), worker, how);
  } else {
    emulated_world_died(how);
  }
}

// A rank that refused while another has gone on to a call with it: the other waits for nothing.
// That a rank waits for weights says nothing of the mesh, whose other ranks may refuse later.
bool World::refuser_is_awaited() const {
  if (!matcher_) return false;
  const bool mesh_ended = std::all_of(endings_.begin(), endings_.begin() + mesh_ranks_,
                                      [](const auto& ending) { return ending.has_value(); });
  const int64_t end = mesh_ended ? key_.world_size : mesh_ranks_;
  return std::any_of(endings_.begin(), endings_.end(), [&](const auto& ending) {
    return ending && is_refusal(*ending) && matcher_->is_awaited(ending->rank, end);
  });
}

void World::tick() {
  for (const auto& worker : workers_) worker->drain();  // control itself may have been stopped
  take_lines();
  if (!running_) return;
  if (refuser_is_awaited()) return settle();
  if (network_) network_->look();
  const HangSample sample{seconds_since(started_), board_.total_calls(), cpu_seconds()};
  uint64_t done = sample.calls;
  for (const auto& worker : workers_) done += worker->ops();
  if (deadline_.sample(sample.now_s, sample.cpu_s, done)) {
    hung(fmt::format("the case did not end within its deadline of {:g} s after its last call or op",
                     deadline_s_));
  } else if (looks_hung(sample)) {
    hung(fmt::format("for {:g} s no rank entered a collective or used more than {:.0f}% of a core",
                     hang_s_, HangRule::kIdleShare * 100));
  }
  if (deadline_.is_near()) {
    for (const auto& worker : workers_) worker->ask_ops();
  }
  const auto period = std::chrono::duration<double>(hang_rule_.period_s());
  after(std::chrono::duration_cast<milliseconds>(period), [](World& world) { world.tick(); });
}

std::vector<double> World::cpu_seconds() const {
  std::vector<double> used;
  for (const auto& worker : workers_) used.push_back(worker->cpu_seconds());
  return used;
}

bool World::looks_hung(const HangSample& sample) {
  if (!hang_rule_.sample(sample)) return false;
  const bool slow = std::any_of(workers_.begin(), workers_.end(),
                                [](const auto& worker) { return worker->runnable(); });
  if (slow) hang_rule_.restart();  // it waits for the processor or the disk
  return !slow;
}

void World::hung(const std::string& limit) {
  if (!running_ || settling_ || abort_sent_) return;
  if (in_processes()) return hung_processes(limit);
  const std::string why =
      workers_[0]->stopped() ? "the process of the world is stopped by a signal; " + limit : limit;
  abort_sent_ = true;
  workers_[0]->send(FrameType::kAbort, why);
  after(kAbortGrace, [why](World& world) {
    for (int64_t rank = 0; rank < world.key_.world_size; ++rank) {
      if (!world.endings_[static_cast<size_t>(rank)])
        world.set_ending(rank, ResultKind::kHung, why);
    }
    world.settle();
  });
}

// A rank whose process is stopped holds up all others. Else ranks that wait in a call for others
// are victims; the others are the cause. If all wait, they wait for each other.
void World::hung_processes(const std::string& why) {
  std::vector<int64_t> running;
  std::vector<std::string> waits;
  bool all_wait = true, any_stopped = false;
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    if (endings_[static_cast<size_t>(rank)]) continue;
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
    const std::string doing = waiting ? waits[i] : "it is in no call that waits for others";
    set_ending(running[i],
               !waiting   ? ResultKind::kHung
               : all_wait ? ResultKind::kDeadlock
                          : ResultKind::kAborted,
               doing + "; " + why);
  }
  settle();
}

void World::settle_after(milliseconds grace) {
  after(grace, [](World& world) { world.settle(); });
}

void World::settle() {
  if (!running_ || std::exchange(settling_, true)) return;
  for (const auto& worker : workers_) {
    if (running_) worker->drain();  // what arrived before the failure may explain it
  }
  take_lines();
  if (!running_) return;
  const std::string cause = root_cause();
  for (int64_t rank = 0; rank < key_.world_size; ++rank) {
    if (endings_[static_cast<size_t>(rank)]) continue;
    const std::string why = "ended because " + cause;
    set_ending(rank, ResultKind::kAborted, matcher_ ? matcher_->consequence(rank, why) : why);
  }
  finish();
}

bool World::all_ended() const {
  return std::all_of(endings_.begin(), endings_.end(), [](const auto& ending) { return ending; });
}

void World::kill() {
  broken_ = true;
  settle();
  for (const auto& worker : workers_) worker->kill();
}

void World::finish() {
  running_ = false;
  add_trouble_of_links();
  WorldRun run;
  run.warm = case_number_ > 1;
  run.seconds = seconds_since(started_);
  bool finished = true;
  bool refused = board_.total_calls() == 0;
  for (auto& ending : endings_) {
    finished = finished && ending->kind == ResultKind::kFinished;
    refused = refused && is_refusal(*ending);
    add_faults(*ending);
    run.endings.push_back(std::move(*ending));
  }
  run.reusable = !broken_ && (finished || refused);
  add_printed(run.endings);
  if (!run.reusable) {
    broken_ = true;
    for (const auto& worker : workers_) {
      if (!worker->is_remote()) worker->kill();  // those are dismissed, with a status
    }
  }
  // From the event loop, so that whoever called into this world has returned.
  boost::asio::post(io_, [done = std::exchange(done_, {}), run = std::move(run)]() mutable {
    done(std::move(run));
  });
}

}  // namespace shardproof::sim::world
