#include "sim/world/external/external_rank.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <thread>

#include "base/elapsed.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/program_digest.h"
#include "sim/world/external/launcher_watch.h"
#include "sim/world/external/store_questions.h"
#include "sim/world/process/ending_codec.h"
#include "sim/world/process/lives.h"
#include "sim/world/process/op_count.h"
#include "sim/world/process/process_clock.h"
#include "sim/world/process/wire.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim::world {
namespace {

constexpr auto kHeartbeatPeriod = std::chrono::milliseconds(200);
// How long control waits for the hello of a rank that has proved itself.
constexpr timeval kHelloLimit{5, 0};
constexpr size_t kMostHostCharacters = 255;
constexpr int kBadInput = 2, kControlGone = 3;
// In a later life control is there, and may be busy with a case's results. If it goes, so does the
// connection.
constexpr std::chrono::seconds kNoLimit{0};
// A rank sends heartbeats all the time. If none of them is acknowledged for so long, control's host
// has gone without closing the connection, or is cut off. TCP repeats what was lost after about 13,
// 25 and 51 s, so that a cut has to heal within 25 s to be seen to heal.
constexpr int kMostSilentLooks = 30;
constexpr std::chrono::seconds kLookPeriod{1};

// The golden that a kGolden frame names: "path <path>", or "bytes <content>".
OwnedFd open_golden(const std::string& payload) {
  if (payload.rfind("path ", 0) == 0)
    return OwnedFd(::open(payload.c_str() + 5, O_RDONLY | O_CLOEXEC));
  OwnedFd memory(::memfd_create("golden", MFD_CLOEXEC));
  const std::string_view bytes = std::string_view(payload).substr(6);
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::write(memory.get(), bytes.data() + sent, bytes.size() - sent);
    SHARDPROOF_ASSERT(count > 0, "no memory for the golden");
    sent += static_cast<size_t>(count);
  }
  return memory;
}

// The address of control, in memory that a rank shares with the processes that replace it: none of
// them looks it up again.
class SharedAddress {
 public:
  SharedAddress()
      : address_(static_cast<Address*>(::mmap(nullptr, sizeof(Address), PROT_READ | PROT_WRITE,
                                              MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    SHARDPROOF_ASSERT(address_ != MAP_FAILED, "no memory for an address");
  }
  ~SharedAddress() { ::munmap(address_, sizeof(Address)); }
  SharedAddress(const SharedAddress&) = delete;
  SharedAddress& operator=(const SharedAddress&) = delete;

  NetAddress get() const { return {address_->host, address_->port}; }  // port 0: not known yet
  void set(const NetAddress& address) {
    SHARDPROOF_ASSERT(address.host.size() < sizeof(address_->host), "the address of a host");
    std::memcpy(address_->host, address.host.c_str(), address.host.size() + 1);
    address_->port = address.port;
  }

 private:
  struct Address {
    char host[1020];
    int port;
  };
  Address* address_;
};

// Under torchrun its store holds the master's port, so control has another and is found through
// that store. Whoever writes there may lead a rank astray, but not prove the secret to it.
std::string control_key(const ExternalPlace& place) {
  return "shardproof/" + place.run_id + "/control";
}

LauncherStore store_of(const ExternalPlace& place) {
  return {place.master_addr, place.master_port, std::chrono::seconds(place.meeting_s)};
}

NetAddress find_control(const ExternalPlace& place, const WorkerFunctions& functions) {
  if (!place.store_is_hosted) return {place.master_addr, place.master_port};
  const std::string text = functions.exchange(store_of(place), control_key(place), "");
  const size_t space = text.find(' ');
  const long port = space == std::string::npos ? 0 : std::strtol(text.c_str() + space, nullptr, 10);
  if (port < 1 || port > 65535 || space > kMostHostCharacters) {
    throw_bad_input(fmt::format("the store at {}:{} holds no address of rank 0's control "
                                "process, but what somebody else has written there",
                                place.master_addr, place.master_port),
                    "let only the hosts of the ranks reach that port");
  }
  return {text.substr(0, space), static_cast<int>(port)};
}

void publish(const ExternalPlace& place, const WorkerFunctions& functions,
             const NetAddress& control) {
  if (!place.store_is_hosted) return;
  functions.exchange(store_of(place), control_key(place),
                     fmt::format("{} {}", control.host, control.port));
}

// Proves the secret to control, and that control knows it.
Seals shake_hands(int socket, const ExternalPlace& place, const NetAddress& control,
                  std::chrono::seconds limit) {
  RankHandshake handshake(place.secret, place.rank, place.world_size);
  const auto refuse = [&control](const std::string& what) {
    return Error({.kind = ErrorKind::kBadInput,
                  .what = fmt::format("the process at {}:{} {}", control.host, control.port, what),
                  .fix = "give all ranks the same SHARDPROOF_SECRET and WORLD_SIZE, and let only "
                         "their hosts reach MASTER_PORT"});
  };
  const auto greeting = receive(socket, kGreetingBytes, limit);
  const std::string answer = greeting ? handshake.answer(*greeting) : "";
  if (answer.empty()) throw refuse("did not greet as rank 0's control process does");
  if (::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(answer.size())) {
    throw refuse("went away");
  }
  const auto reply = receive(socket, kReplyBytes, limit);
  const auto seals = reply ? handshake.check(*reply) : std::nullopt;
  if (!seals) throw refuse("is not control of a run with this rank's secret and WORLD_SIZE");
  return *seals;
}

// The rank's side of the connection.
class ExternalRank {
 public:
  ExternalRank(const ExternalPlace& place, const WorkerFunctions& functions, Backend backend,
               DeviceKind device, SharedAddress& known, std::chrono::seconds limit)
      : place_(place) {
    prepare_rank_process();
    NetAddress control = known.get();
    if (control.port == 0) control = find_control(place, functions);
    socket_ = connect_to(control, std::chrono::seconds(place.meeting_s));
    seals_ = shake_hands(socket_.get(), place, control, limit);
    known.set(control);
    control_ = control;
    const ExternalHello hello = own_hello(place_.rank);
    send(FrameType::kHello, nlohmann::json(hello).dump());
    session_ = functions.make_world(world_setup(backend, device));
    std::thread([this] { beat(); }).detach();
    std::thread([this] { look_for_control(); }).detach();
  }

  [[noreturn]] void serve() {
    const auto on_urgent = [this](const Frame& frame) {
      if (frame.type == FrameType::kExit) ::_exit(std::stoi(frame.payload));
      if (frame.type == FrameType::kAbort) ::_exit(kNextLife);
      if (frame.type == FrameType::kAskOps) send(FrameType::kOps, std::to_string(ops_begun()));
      if (frame.type == FrameType::kStore) questions_.answered(frame.payload);
    };
    Inbox inbox(socket_.get(), on_urgent, seals_->in,
                [this] { control_gone("has closed the connection"); });
    OwnedFd golden;
    for (;;) {
      const Frame frame = inbox.next();
      if (frame.type == FrameType::kGolden) {
        golden = open_golden(frame.payload);
        continue;
      }
      std::vector<RankEnding> endings;
      try {
        endings =
            session_.run(case_spec_from_json(nlohmann::json::parse(frame.payload)), golden.get());
      } catch (...) {
        endings = endings_of_exception(place_.rank, place_.world_size);
      }
      golden = OwnedFd();
      send(FrameType::kEndings, encode(endings));
    }
  }

 private:
  WorldSetup world_setup(Backend backend, DeviceKind device) {
    WorldSetup setup;
    setup.backend = backend;
    setup.device = device;
    setup.world_size = place_.world_size;
    setup.rank = place_.rank;
    setup.local_rank = place_.local_rank;
    setup.listen_host =
        own_address(socket_.get()).host;  // the other ranks reach it as control does
    setup.store.ask = [this](nlohmann::json request, std::chrono::milliseconds timeout) {
      return questions_.ask(std::move(request), timeout);
    };
    setup.hooks.on_start = [](int64_t) {};
    setup.hooks.on_call = [this](int64_t, const CallLine& line) {
      send(FrameType::kCallLine, encode_line(line));
    };
    setup.hooks.on_fault = [this](int64_t rank, const FaultNote& note) {
      send(FrameType::kFault, encode(rank, note));
    };
    return setup;
  }

  void send(FrameType type, const std::string& payload) {
    const Lock lock(mutex_);
    const std::string sealed = seals_->out.close(static_cast<uint16_t>(type), payload);
    if (!send_frame(socket_.get(), type, sealed)) control_gone("has closed the connection");
  }

  [[noreturn]] void control_gone(const std::string& what) {
    static Mutex only_once;
    only_once.lock();  // and never unlocked
    const std::string text = fmt::format(
        "shardproof: rank {}: {} at {}:{} {}; this rank ends\n", place_.rank,
        place_.rank == 0 ? "its control" : "rank 0's process", control_.host, control_.port, what);
    ::dprintf(STDERR_FILENO, "%s", text.c_str());
    ::_exit(kControlGone);
  }

  // A connection to a host that was switched off stays open for a quarter of an hour.
  void look_for_control() {
    int silent = 0;  // looks in a row; while this process is stopped it does not look
    for (;;) {
      std::this_thread::sleep_for(kLookPeriod);
      silent = unanswered_for(socket_.get()) > kLookPeriod ? silent + 1 : 0;
      if (silent < kMostSilentLooks) continue;
      control_gone(fmt::format("has not answered for {} s", silent * kLookPeriod.count()));
    }
  }

  void beat() {
    for (;;) {
      send(FrameType::kHeartbeat,
           nlohmann::json{{"cpu_s", cpu_seconds_of(::getpid())}, {"runnable", others_runnable()}}
               .dump());
      std::this_thread::sleep_for(kHeartbeatPeriod);
    }
  }

  // The observing thread is itself runnable, so work means two runnable threads.
  static bool others_runnable() { return runnable_threads(::getpid()) > 1; }

  ExternalPlace place_;
  NetAddress control_;
  Mutex mutex_;  // of what is sent
  OwnedFd socket_;
  std::optional<Seals> seals_;
  StoreQuestions questions_{
      [this](const std::string& question) { send(FrameType::kStore, question); }};
  WorldSession session_;
};

// Life after life. `control`: where rank 0 knows it to be, and tells the others in its first.
[[noreturn]] void live_as_rank(const ExternalPlace& place, Backend backend, DeviceKind device,
                               const WorkerFunctions& functions, const NetAddress& control = {},
                               int launcher = -1) {
  SharedAddress known;
  known.set(control);
  const auto live = [&](int64_t life) {
    int status = kControlGone;
    try {
      if (life == 0 && control.port == 0) {
        require_resolves(place.master_addr, place.waits_for_name,
                         std::chrono::seconds(place.meeting_s));
      }
      if (life == 0 && control.port != 0) publish(place, functions, control);
      ExternalRank rank(place, functions, backend, device, known,
                        life == 0 ? std::chrono::seconds(place.meeting_s) : kNoLimit);
      rank.serve();
    } catch (const std::exception& error) {
      const auto* own = dynamic_cast<const Error*>(&error);
      if (own != nullptr && own->kind() == ErrorKind::kBadInput) status = kBadInput;
      // In a later life control has most likely gone, and said all there is to say.
      if (life == 0) {
        const std::string text = fmt::format("shardproof: rank {}: {}\n", place.rank, error.what());
        ::dprintf(STDERR_FILENO, "%s", text.c_str());
      }
    }
    ::_exit(status);
  };
  run_lives(live, launcher, [&place] { say_launcher_gone(place); });
}

}  // namespace

void serve_external_rank(const ExternalPlace& place, Backend backend, DeviceKind device,
                         const WorkerFunctions& functions) {
  const OwnedFd launcher = watch_launcher(place);
  live_as_rank(place, backend, device, functions, {}, launcher.get());
}

ExternalHost::ExternalHost(const ExternalPlace& place, Backend backend, DeviceKind device,
                           const WorkerFunctions& functions)
    : place_(place) {
  listener_ = std::make_unique<RankListener>(
      listen_at(place.master_addr, place.store_is_hosted ? 0 : place.master_port,
                place.on_one_host),
      place.secret, place.world_size);
  const NetAddress address = listener_->address();
  const pid_t control = ::getpid();
  std::fflush(nullptr);  // else the child prints it again
  child_ = ::fork();
  SHARDPROOF_ASSERT(child_ >= 0, "rank 0 cannot be forked");
  if (child_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != control) ::_exit(kControlGone);
  ::setpgid(0, 0);
  listener_.reset();
  live_as_rank(place, backend, device, functions, address);
}

ExternalHost::~ExternalHost() {
  for (int waited_ms = 0; waited_ms < 1000; ++waited_ms) {
    if (::waitpid(child_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

namespace {

bool is_open(int socket) {
  char byte = 0;
  return ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 0;
}

}  // namespace

std::vector<ExternalHost::Peer> ExternalHost::accept_all(double limit_s,
                                                         const std::function<bool()>& stop) {
  const auto start = std::chrono::steady_clock::now();
  const std::string own_boot = boot_id();
  std::vector<Peer> peers(static_cast<size_t>(place_.world_size));
  std::set<int64_t> missing;
  for (int64_t rank = 0; rank < place_.world_size; ++rank) missing.insert(rank);
  std::string twice;
  while (!missing.empty() && !stop()) {
    if (seconds_since(start) > limit_s) {
      const std::string refusals = listener_->refusals();
      throw_failed(fmt::format("{} {} did not come within {:g} s{}{}{}",
                               missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                               limit_s, twice, refusals.empty() ? "" : "; ", refusals),
                   twice.empty()
                       ? "look at what they printed, and whether they reach " + place_.master_addr
                       : "give each process a RANK of its own",
                   "hung");
    }
    for (auto& caller : listener_->take(std::chrono::milliseconds(100))) {
      ::setsockopt(caller.socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kHelloLimit, sizeof(kHelloLimit));
      const auto frame = read_one_frame(caller.socket.get(), 4096);
      const auto text =
          frame ? caller.seals.in.open(static_cast<uint16_t>(FrameType::kHello), frame->payload)
                : std::nullopt;
      const auto hello = text ? decode_hello(*text) : std::nullopt;
      if (!hello) continue;  // it may have died in the meantime; its next life is on its way
      if (missing.erase(caller.rank) == 0) {
        const Peer& first = peers[static_cast<size_t>(caller.rank)];
        if (is_open(first.socket.get())) {
          twice +=
              fmt::format("; rank {} came twice, as process {} on {} and process {} on {}",
                          caller.rank, first.hello.pid, first.hello.host, hello->pid, hello->host);
        }
        continue;
      }
      if (hello->program != program_digest()) {
        throw_bad_input(fmt::format("rank {} on {} runs another build of shardproof than rank 0",
                                    caller.rank, hello->host),
                        "install the same one on all hosts");
      }
      send_at_once(caller.socket.get());
      peers[static_cast<size_t>(caller.rank)] = {
          .socket = std::move(caller.socket),
          .hello = *hello,
          .seals = caller.seals,
          .same_host = !own_boot.empty() && hello->boot == own_boot};
    }
  }
  return missing.empty() ? std::move(peers) : std::vector<Peer>();
}

}  // namespace shardproof::sim::world
