#include "sim/world/launch/world.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/elapsed.h"
#include "base/error.h"
#include "sim/world/launch/process_world.h"
#include "sim/world/launch/thread_world.h"
#include "sim/world/process/ending_codec.h"
#include "sim/world/process/process_clock.h"

namespace shardproof::sim::world {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// As kGraceAfterRoot, where what failed is itself a consequence.
constexpr milliseconds kGraceAfterConsequence{400};

}  // namespace

std::shared_ptr<World> World::start(boost::asio::io_context& io, Workers& workers, WorldKey key) {
  const auto started = [&](const auto& world) {
    world->start(workers);
    return world;
  };
  if (key.backend == Backend::kEmulated) return started(std::make_shared<ThreadWorld>(io, key));
  return started(std::make_shared<ForkedWorld>(io, key));
}

void World::add_worker(std::shared_ptr<WorkerProcess> worker) {
  const size_t index = workers_.size();
  const auto self = weak_from_this();
  workers_.push_back(std::move(worker));
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

void World::run(const CaseSpec& spec, int golden_fd, std::function<void(WorldRun)> done) {
  SHARDPROOF_ASSERT(!running_ && !broken_, "a world that is busy or broken was given a case");
  const std::string request = request_text(to_json(spec));
  ++case_number_;
  running_ = true;
  settling_ = false;
  done_ = std::move(done);
  hang_s_ = spec.world.hang_s;
  deadline_s_ = spec.world.deadline_s;
  hang_rule_ = HangRule(hang_s_);
  endings_.assign(static_cast<size_t>(key_.world_size), std::nullopt);
  faults_.clear();
  board_.clear();
  begin(spec);
  started_ = steady_clock::now();
  deadline_ = Deadline(deadline_s_, usable_cores());
  deadline_.sample(0, cpu_seconds());
  try {
    for (const auto& worker : workers_) {
      worker->forget_output();
      worker->send_request(request, golden_fd);
    }
  } catch (const Error& error) {  // some worker did not get the case
    note({.rank = 0, .kind = ResultKind::kBadInput, .message = error.what(), .shortage = true});
  }
  tick();
}

void World::after(milliseconds delay, std::function<void()> action) {
  const auto timer = std::make_shared<boost::asio::steady_timer>(io_, delay);
  timer->async_wait([timer, self = weak_from_this(), number = case_number_,
                     action = std::move(action)](const boost::system::error_code& error) {
    const auto world = self.lock();
    if (!error && world && world->running_ && world->case_number_ == number) action();
  });
}

void World::on_frame(size_t, Frame frame) {
  if (!running_) return;
  // Before the lines are taken: one that the fault has spoilt may end the case.
  if (frame.type == FrameType::kFault) return faults_.push_back(decode_fault(frame.payload));
  if (frame.type != FrameType::kEndings) return;
  take_lines();  // they were put before it was sent
  for (RankEnding& ending : decode_endings(frame.payload)) note(std::move(ending));
}

void World::note(RankEnding ending) {
  const auto rank = static_cast<size_t>(ending.rank);
  SHARDPROOF_ASSERT(rank < endings_.size(), "an ending of a rank outside the world");
  if (!running_ || endings_[rank]) return;
  if (ending.last_call.empty()) ending.last_call = last_call(ending.rank);
  const ResultKind kind = ending.kind;
  const bool refusal = is_refusal(ending) && !ending.shortage;
  endings_[rank] = std::move(ending);
  if (kind == ResultKind::kFinished) {
    if (const auto finding = finished(static_cast<int64_t>(rank))) found(*finding);
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
  if (running_) worker_died(worker, how);
}

void World::tick() {
  for (const auto& worker : workers_) worker->drain();  // control itself may have been stopped
  take_lines();
  if (!running_) return;
  if (looks_stuck()) return settle();
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
  // A short deadline is sampled often enough to ask for ops before it has passed.
  constexpr double kLeastPeriod_s = 0.02;
  const auto period = std::chrono::duration<double>(
      std::min(hang_rule_.period_s(), std::max(deadline_s_ / 8, kLeastPeriod_s)));
  after(std::chrono::duration_cast<milliseconds>(period), [this] { tick(); });
}

std::vector<double> World::cpu_seconds() const {
  std::vector<double> used;
  for (const auto& worker : workers_) used.push_back(worker->cpu_seconds());
  return used;
}

bool World::looks_hung(const HangSample& sample) {
  if (!hang_rule_.sample(sample)) return false;
  const bool slow =
      std::ranges::any_of(workers_, [](const auto& worker) { return worker->runnable(); });
  if (slow) hang_rule_.restart();  // it waits for the processor or the disk
  return !slow;
}

void World::settle_after(milliseconds grace) {
  after(grace, [this] { settle(); });
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
    if (has_ended(rank)) continue;
    set_ending(rank, ResultKind::kAborted, consequence(rank, "ended because " + cause));
  }
  finish();
}

bool World::all_ended() const {
  return std::ranges::all_of(endings_, [](const auto& ending) { return ending.has_value(); });
}

void World::kill() {
  broken_ = true;
  settle();
  World::end_workers();
}

void World::end_workers() {
  for (const auto& worker : workers_) worker->kill();
}

void World::finish() {
  running_ = false;
  WorldRun run;
  bool all_finished = true;
  bool refused = board_.total_calls() == 0;
  for (auto& ending : endings_) {
    all_finished = all_finished && ending->kind == ResultKind::kFinished;
    refused = refused && is_refusal(*ending);
    add_faults(*ending);
    run.endings.push_back(std::move(*ending));
  }
  run.reusable = !broken_ && (all_finished || refused);
  add_facts(run.endings);
  if (!run.reusable) {
    broken_ = true;
    end_workers();
  }
  // From the event loop, so that whoever called into this world has returned.
  boost::asio::post(io_, [done = std::exchange(done_, {}), run = std::move(run)]() mutable {
    done(std::move(run));
  });
}

void World::set_ending(int64_t rank, ResultKind kind, const std::string& message) {
  auto& ending = endings_[static_cast<size_t>(rank)];
  if (ending) return;
  ending = {.rank = rank, .kind = kind, .message = message, .last_call = last_call(rank)};
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

// A rank that ended before it could report its faults has reported each one when it acted.
void World::add_faults(RankEnding& ending) const {
  if (!ending.faults.empty()) return;
  for (const auto& [rank, note] : faults_) {
    if (rank == ending.rank) ending.faults.push_back(note);
  }
}

std::string World::printed_by(size_t worker, int lines) const {
  return last_lines(workers_[worker]->output(), lines);
}

}  // namespace shardproof::sim::world
