#include "sim/world/process/worker_main.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <exception>
#include <optional>

#include "base/error.h"
#include "base/mutex.h"
#include "base/shortage.h"
#include "sim/world/process/call_board.h"
#include "sim/world/process/call_lines.h"
#include "sim/world/process/ending_codec.h"
#include "sim/world/process/op_count.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace {

// The one thing that a signal handler can reach: where to note whose thread is crashing.
std::atomic<CallBoard*> crash_board = nullptr;

void note_crash(int signal) {
  if (CallBoard* board = crash_board.load()) board->crashing();
  ::raise(signal);  // SA_RESETHAND: it now ends the process, once this handler has returned
}

void watch_for_crashes(CallBoard* board) {
  crash_board.store(board);
  struct sigaction action {};
  action.sa_handler = note_crash;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
    ::sigaction(signal, &action, nullptr);
  }
}

// How a failure outside any rank's own code is named.
TaskOutcome outcome_of_exception() {
  const ExceptionFacts facts = facts_of_exception(ResultKind::kInternal);
  return {.kind = facts.kind, .message = facts.message};
}

// What any thread of a worker tells control. When control has gone, the process ends.
class Sender {
 public:
  explicit Sender(int channel) : channel_(channel) {}
  void operator()(FrameType type, const std::string& payload) {
    const Lock lock(mutex_);
    if (!send_frame(channel_, type, payload)) ::_exit(0);
  }

 private:
  Mutex mutex_;
  int channel_ SHARDPROOF_GUARDED_BY(mutex_);
};

[[noreturn]] void serve_golden(const WorkerFunctions& functions, int channel) {
  Sender send(channel);
  Inbox inbox(channel, [&](const Frame& urgent) {
    if (urgent.type == FrameType::kAskOps) send(FrameType::kOps, std::to_string(ops_begun()));
  });
  for (;;) {
    const Frame frame = inbox.next();
    const nlohmann::json task = nlohmann::json::parse(frame.payload);
    TaskOutcome outcome;
    try {
      outcome.golden = functions.golden_main(
          case_spec_from_json(task.at("case")), static_cast<golden::Members>(task.at("members")),
          frame.fds.at(0).get(), task.at("dump").get<std::string>());
      outcome.ok = true;
    } catch (...) {
      outcome = outcome_of_exception();
    }
    send(FrameType::kTaskDone,
         nlohmann::json(outcome).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  }
}

}  // namespace

ExceptionFacts facts_of_exception(ResultKind otherwise) {
  const auto plain = [&](const std::exception& error, const std::string& what) -> ExceptionFacts {
    const std::string shortage = shortage_text(error);
    if (shortage.empty()) return {.kind = otherwise, .message = what};
    return {.kind = ResultKind::kBadInput, .message = shortage, .shortage = true};
  };
  try {
    throw;
  } catch (const Error& error) {
    switch (error.kind()) {
      case ErrorKind::kBadInput:
        return {ResultKind::kBadInput, error.what(), error.code() == kShortage};
      case ErrorKind::kRefused:
        return {ResultKind::kRefused, error.what()};
      case ErrorKind::kFailed:
        return {error.code().empty() ? ResultKind::kThrew : enum_of<ResultKind>(error.code()),
                error.what()};
    }
  } catch (const InternalError& error) {
    return {ResultKind::kInternal, error.what()};
  } catch (const c10::Error& error) {
    return plain(error, error.what_without_backtrace());
  } catch (const std::exception& error) {
    return plain(error, error.what());
  } catch (...) {
    return {otherwise, "an exception of an unknown type"};
  }
  return {ResultKind::kInternal, "an error of an unknown kind"};
}

std::vector<RankEnding> endings_of_exception(int64_t only_rank, int64_t world_size) {
  const ExceptionFacts why = facts_of_exception(ResultKind::kInternal);
  std::vector<RankEnding> endings;
  const int64_t first = only_rank < 0 ? 0 : only_rank;
  const int64_t last = only_rank < 0 ? world_size - 1 : only_rank;
  for (int64_t rank = first; rank <= last; ++rank) {
    endings.push_back(
        {.rank = rank, .kind = why.kind, .message = why.message, .shortage = why.shortage});
  }
  return endings;
}

namespace {

[[noreturn]] void serve_world(const WorkerFunctions& functions, const WorkerSetup& setup,
                              int channel, WorkerFds fds) {
  CallBoard board(std::move(fds.board), setup.world_size);
  watch_for_crashes(&board);
  Sender send(channel);

  WorldSetup world{.backend = setup.backend,
                   .device = setup.device,
                   .world_size = setup.world_size,
                   .rank = setup.rank,
                   .local_rank = setup.rank,
                   .listen_host = setup.listen_host};
  if (setup.node >= 0) {
    world.hooks.change_link = functions.enter_node({.node = setup.node,
                                                    .network = fds.node_network.get(),
                                                    .network_of_switch = fds.switch_network.get(),
                                                    .user = fds.node_user.get(),
                                                    .relay = fds.relay.get(),
                                                    .gb_per_s = setup.gb_per_s});
  }
  world.store.pages = fds.store.get();
  world.hooks.before_kill = [&board](int64_t) { board.crashing(); };
  world.hooks.on_start = [&board](int64_t rank) { board.started(rank); };
  world.hooks.on_fault = [&send](int64_t rank, const FaultNote& note) {
    send(FrameType::kFault, encode(rank, note));
  };
  std::optional<CallLines> lines;  // an emulated world matches its own calls
  if (fds.lines.valid()) lines.emplace(std::move(fds.lines), setup.world_size);
  Mutex lines_mutex;
  world.hooks.on_call = [&](int64_t rank, const CallLine& line) {
    if (!line.waiting) board.entered(rank, describe(line));
    if (!lines) return;
    const Lock lock(lines_mutex);
    lines->put(rank, encode_line(line));
  };

  Mutex session_mutex;
  WorldSession session;
  Inbox inbox(channel, [&](const Frame& urgent) {
    if (urgent.type == FrameType::kAskOps) send(FrameType::kOps, std::to_string(ops_begun()));
    const Lock lock(session_mutex);
    if (urgent.type == FrameType::kAbort && session.abort) session.abort(urgent.payload);
  });
  for (;;) {
    const Frame frame = inbox.next();
    std::vector<RankEnding> endings;
    try {
      if (!session.run) {
        WorldSession made = functions.make_world(world);
        const Lock lock(session_mutex);
        session = std::move(made);
      }
      endings = session.run(case_spec_from_json(nlohmann::json::parse(frame.payload)),
                            frame.fds.empty() ? -1 : frame.fds[0].get());
    } catch (...) {
      endings = endings_of_exception(setup.rank, setup.world_size);
    }
    send_endings(std::move(endings),
                 [&send](const std::string& part) { send(FrameType::kEndings, part); });
  }
}

void take_over_output(const OwnedFd& output) {
  const OwnedFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::dup2(nothing.get(), STDIN_FILENO);
  ::dup2(output.get(), STDOUT_FILENO);
  ::dup2(output.get(), STDERR_FILENO);
  ::setvbuf(stdout, nullptr, _IOLBF, 0);
}

}  // namespace

std::string WorkerSetup::process_name() const {
  if (is_golden) return "sp-golden";
  return rank < 0 ? "sp-world-" + std::to_string(world_size) : "sp-rank-" + std::to_string(rank);
}

void prepare_rank_process() {
  std::signal(SIGPIPE, SIG_IGN);
  ::setenv("TORCH_FR_BUFFER_SIZE", "0", 0);
}

void worker_main(const WorkerFunctions& functions, const WorkerSetup& setup, WorkerFds fds) {
  const rlimit no_core{0, 0};  // writing a core of hundreds of MB would hide a death for seconds
  ::setrlimit(RLIMIT_CORE, &no_core);
  prepare_rank_process();
  ::prctl(PR_SET_NAME, setup.process_name().c_str());
  take_over_output(fds.output);
  fds.output.reset();
  const OwnedFd kept = std::move(fds.channel);
  const int channel = kept.get();
  try {
    if (setup.is_golden) serve_golden(functions, channel);
    serve_world(functions, setup, channel, std::move(fds));
  } catch (const std::exception& error) {
    // What the machine lacks for this worker ends the case as bad input, not as a death.
    const TaskOutcome why = outcome_of_exception();
    if (why.kind == ResultKind::kBadInput && setup.is_golden) {
      send_frame(channel, FrameType::kTaskDone, nlohmann::json(why).dump());
    } else if (why.kind == ResultKind::kBadInput) {
      send_frame(channel, FrameType::kEndings,
                 encode(endings_of_exception(setup.rank, setup.world_size)));
    }
    ::dprintf(STDERR_FILENO, "worker: %s\n", error.what());
    ::_exit(70);
  }
}

}  // namespace shardproof::sim::world
