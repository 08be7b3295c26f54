#include "sim/world/launch/world_pool.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdio>
#include <list>
#include <set>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/shortage.h"
#include "sim/case/names.h"
#include "sim/world/launch/golden_worker.h"
#include "sim/world/launch/interrupts.h"
#include "sim/world/launch/process_world.h"

namespace shardproof::sim::world {
namespace {

// When more worlds are idle, the pool ends the one that was used longest ago.
constexpr size_t kMaxIdleWorlds = 8;
constexpr int64_t kMaxIdleRanks = 1024;
// How long ranks of another launcher may take to come again: after a case that ended them, and
// only to hear the exit status.
constexpr double kRemakePatience_s = 10;
constexpr double kDismissPatience_s = 3;
constexpr std::chrono::seconds kFirstWord{1}, kNextWord{10};

// The run of a case that no rank began.
WorldRun not_begun(const CaseSpec& spec, ResultKind kind, const std::string& message) {
  WorldRun run;
  for (int64_t rank = 0; rank < spec.parallel.world_size(); ++rank) {
    run.endings.push_back({.rank = rank, .kind = kind, .message = message});
  }
  return run;
}

// Its nodes are made here, unless the ranks of another launcher are on nodes of their own.
WorldKey key_of(const CaseSpec& spec, bool makes_nodes) {
  WorldKey key{spec.world.backend, spec.world.device, spec.parallel.world_size()};
  if (makes_nodes && spec.world.backend == Backend::kGloo) {
    key.ranks_per_node = spec.world.ranks_per_node;
    key.links = links_of_nodes(spec);
  }
  return key;
}

}  // namespace

struct WorldPool::Impl {
  explicit Impl(WorkerFunctions given)
      : functions(std::move(given)),
        workers(std::make_unique<Workers>(io, functions)),
        interrupts(io, [this] {
          interrupted = true;
          end_all();
        }) {}

  ~Impl() {
    end_all();
    idle_worlds.clear();
    idle_goldens.clear();
    workers.reset();
  }

  void end_all() {
    for (const auto& world : std::exchange(busy_worlds, {})) world->kill();
    for (const auto& golden : std::exchange(busy_goldens, {})) golden->kill();
  }

  // A zygote that was ended from outside takes its workers with it; the next case gets a new one.
  void revive_workers() {
    if (workers->usable()) return;
    idle_worlds.clear();
    idle_goldens.clear();
    workers.reset();
    workers = std::make_unique<Workers>(io, functions);
  }

  // What `start` makes of the workers; once more when the zygote has gone meanwhile, as nothing of
  // it has begun.
  template <class Start>
  auto start_anew_if_gone(const Start& start) {
    try {
      return start();
    } catch (const InternalError&) {
      if (workers->usable()) throw;
    }
    revive_workers();
    return start();
  }

  // "the golden", "1000 emulated ranks": what has not ended yet.
  std::string under_way() const {
    std::string text = busy_goldens.empty()       ? ""
                       : busy_goldens.size() == 1 ? "the golden"
                                                  : fmt::format("{} goldens", busy_goldens.size());
    for (const auto& world : busy_worlds) {
      text += fmt::format("{}{} {} rank{}", text.empty() ? "" : ", ", world->key().world_size,
                          name_of(world->key().backend), world->key().world_size == 1 ? "" : "s");
    }
    return text;
  }

  // `timer` is that of a wait: the words end with it.
  void say_later(const std::shared_ptr<boost::asio::steady_timer>& timer,
                 std::chrono::steady_clock::time_point start, std::chrono::seconds delay) {
    timer->expires_after(delay);
    timer->async_wait([this, weak = std::weak_ptr(timer), start](const auto& error) {
      const auto again = weak.lock();
      if (error || !again) return;
      const std::string text = under_way();
      if (!text.empty()) {
        ::dprintf(STDERR_FILENO, "shardproof: waiting for %s, %.0f s so far\n", text.c_str(),
                  seconds_since(start));
      }
      say_later(again, start, kNextWord);
    });
  }

  std::shared_ptr<World> take_world(const WorldKey& key, bool fresh) {
    if (external_world) {
      SHARDPROOF_ASSERT(external_world->key() == key,
                        "a case for another world than the launcher's");
      return external_world;
    }
    idle_worlds.remove_if([](const auto& world) { return world->broken(); });
    revive_workers();
    const auto found = std::find_if(idle_worlds.begin(), idle_worlds.end(),
                                    [&](const auto& world) { return world->key() == key; });
    std::shared_ptr<World> world;
    if (found != idle_worlds.end()) {
      world = *found;
      idle_worlds.erase(found);
      if (fresh) world.reset();
    }
    if (world) return world;
    return start_anew_if_gone([&] { return World::start(io, *workers, key); });
  }

  void keep_world(const std::shared_ptr<World>& world) {
    idle_worlds.push_back(world);
    int64_t ranks = 0;
    for (const auto& idle : idle_worlds) ranks += idle->key().world_size;
    while (idle_worlds.size() > kMaxIdleWorlds ||
           (ranks > kMaxIdleRanks && idle_worlds.size() > 1)) {
      ranks -= idle_worlds.front()->key().world_size;
      idle_worlds.pop_front();
    }
  }

  std::shared_ptr<GoldenWorker> take_golden() {
    idle_goldens.remove_if([](const auto& golden) { return golden->broken(); });
    revive_workers();
    if (idle_goldens.empty()) {
      return start_anew_if_gone([&] { return GoldenWorker::start(io, *workers); });
    }
    const auto golden = idle_goldens.front();
    idle_goldens.pop_front();
    return golden;
  }

  boost::asio::io_context io{1};
  WorkerFunctions functions;
  std::unique_ptr<Workers> workers;
  Interrupts interrupts;
  bool interrupted = false;
  bool says_waits = false;
  std::list<std::shared_ptr<World>> idle_worlds;  // used longest ago first
  std::set<std::shared_ptr<World>> busy_worlds;
  std::list<std::shared_ptr<GoldenWorker>> idle_goldens;
  std::set<std::shared_ptr<GoldenWorker>> busy_goldens;
  // Ranks of another launcher.
  ExternalHost* external_host = nullptr;
  std::shared_ptr<LauncherWorld> external_world;
  bool external_spent = false;               // it is to be made anew before the next case
  std::optional<std::string> external_lost;  // why it could not be
};

WorldPool::WorldPool(WorkerFunctions functions) {
  try {
    impl_ = std::make_unique<Impl>(std::move(functions));
  } catch (const boost::system::system_error& error) {  // the event loop got no descriptor
    throw_shortage("no worker can be started", error.code().value());
  }
}

WorldPool::~WorldPool() = default;

bool WorldPool::interrupted() const {
  impl_->io.poll();  // a signal that came while nobody was waiting
  return impl_->interrupted;
}

void WorldPool::say_waits() { impl_->says_waits = true; }

void WorldPool::wait_until(const std::function<bool()>& satisfied) {
  const auto next_word = std::make_shared<boost::asio::steady_timer>(impl_->io);
  if (impl_->says_waits) impl_->say_later(next_word, std::chrono::steady_clock::now(), kFirstWord);
  while (!satisfied()) impl_->io.run_one();
}

void WorldPool::start_golden(const CaseSpec& spec, golden::Members members, int golden_fd,
                             const std::string& dump_path, std::function<void(TaskOutcome)> done) {
  const auto end_at_once = [&](ResultKind kind, const std::string& why) {
    post([kind, why, done] { done({.kind = kind, .message = why}); });
  };
  std::shared_ptr<GoldenWorker> golden;
  try {
    golden = impl_->take_golden();
    golden->run({.spec = spec, .members = members, .golden_fd = golden_fd, .dump_path = dump_path},
                [this, golden, done](TaskOutcome outcome) {
                  impl_->busy_goldens.erase(golden);
                  // One that lacked something says so and exits.
                  const bool may_exit = outcome.kind == ResultKind::kBadInput;
                  if (!golden->broken() && !may_exit) impl_->idle_goldens.push_back(golden);
                  done(std::move(outcome));
                });
  } catch (const InternalError& error) {
    return end_at_once(ResultKind::kInternal, error.what());
  } catch (const Error& error) {
    return end_at_once(ResultKind::kBadInput, error.what());
  }
  impl_->busy_goldens.insert(golden);
  if (impl_->interrupted) impl_->end_all();
}

void WorldPool::start_case(const CaseSpec& spec, int golden_fd, bool fresh,
                           std::function<bool(WorldRun)> done) {
  const bool has_faults = !spec.faults.empty();
  const WorldKey key = key_of(spec, !impl_->external_world);
  const auto end_at_once = [&](ResultKind kind, const std::string& message) {
    post([run = not_begun(spec, kind, message), done] { done(run); });
  };
  if (const auto why = remake_external(kRemakePatience_s)) {
    return end_at_once(ResultKind::kAborted,
                       "not run: an earlier case ended the ranks, and their world could not be "
                       "made anew (" +
                           *why + "); start all ranks again");
  }
  std::shared_ptr<World> world;
  try {
    world = impl_->take_world(key, fresh || has_faults);
  } catch (const InternalError& error) {  // this case fails; the next one gets new workers
    return end_at_once(ResultKind::kInternal, error.what());
  } catch (const Error& error) {
    return end_at_once(ResultKind::kBadInput, error.what());
  }
  impl_->busy_worlds.insert(world);
  try {
    world->run(spec, golden_fd, [this, world, has_faults, done](WorldRun run) {
      impl_->busy_worlds.erase(world);
      const bool reusable = run.reusable && !has_faults;
      const bool keep = done(std::move(run)) && reusable;
      if (impl_->external_world) {
        impl_->external_spent = !keep;
      } else if (keep) {
        impl_->keep_world(world);
      }
    });
  } catch (const Error& error) {  // no rank has begun
    impl_->busy_worlds.erase(world);
    return end_at_once(ResultKind::kBadInput, error.what());
  }
  if (impl_->interrupted) impl_->end_all();
}

void WorldPool::post(std::function<void()> work) { boost::asio::post(impl_->io, std::move(work)); }

TaskOutcome WorldPool::run_golden(const CaseSpec& spec, golden::Members members, int golden_fd,
                                  const std::string& dump_path) {
  std::optional<TaskOutcome> result;
  start_golden(spec, members, golden_fd, dump_path,
               [&result](TaskOutcome outcome) { result = std::move(outcome); });
  wait_until([&result] { return result.has_value(); });
  return *result;
}

std::vector<RankEnding> WorldPool::run_case(const CaseSpec& spec, int golden_fd, bool fresh) {
  std::optional<WorldRun> result;
  start_case(spec, golden_fd, fresh, [&result](WorldRun run) {
    result = std::move(run);
    return true;
  });
  wait_until([&result] { return result.has_value(); });
  return std::move(result->endings);
}

void WorldPool::adopt(ExternalHost& host, Backend backend, DeviceKind device) {
  impl_->external_host = &host;
  take_in({backend, device, host.place().world_size}, static_cast<double>(host.place().meeting_s));
}

void WorldPool::take_in(const WorldKey& key, double patience_s) {
  ExternalHost& host = *impl_->external_host;
  std::vector<std::shared_ptr<WorkerProcess>> ranks;
  for (auto& peer : host.accept_all(patience_s, [this] { return interrupted(); })) {
    const WorkerProcess::Remote remote{.name = "rank " + std::to_string(peer.hello.rank) +
                                               ", pid " + std::to_string(peer.hello.pid) + " on " +
                                               peer.hello.host,
                                       .host = peer.hello.host,
                                       .same_host = peer.same_host,
                                       .seals = *peer.seals};
    ranks.push_back(std::make_shared<WorkerProcess>(impl_->io, remote, std::move(peer.socket)));
  }
  if (ranks.empty()) return;  // interrupted
  impl_->external_world = std::make_shared<LauncherWorld>(impl_->io, key);
  impl_->external_world->take_in(std::move(ranks));
  impl_->external_spent = false;
}

// Why the world of another launcher's ranks cannot be had; nothing when it is there, or when there
// is no launcher but ours.
std::optional<std::string> WorldPool::remake_external(double patience_s) {
  const std::shared_ptr<LauncherWorld> old = impl_->external_world;
  if (!old || (!old->broken() && !impl_->external_spent)) return std::nullopt;
  if (impl_->external_lost) return impl_->external_lost;
  if (interrupted()) return "the run was interrupted";
  old->end_ranks();
  try {
    take_in(old->key(), patience_s);  // `old` keeps its connections until its ranks have gone
  } catch (const Error& error) {
    impl_->external_lost = error.what();
    return impl_->external_lost;
  }
  if (impl_->external_world == old) return "the run was interrupted";
  return std::nullopt;
}

void WorldPool::dismiss(int status) {
  if (!impl_->external_world) return;
  // Those that have started again hear the status too.
  if (impl_->external_world->broken()) remake_external(kDismissPatience_s);
  impl_->external_world->dismiss(status);
  boost::asio::steady_timer limit(impl_->io, std::chrono::seconds(2));
  bool late = false;
  limit.async_wait([&late](const boost::system::error_code& error) { late = !error; });
  wait_until([&] { return late || impl_->external_world->all_gone(); });
}

}  // namespace shardproof::sim::world
