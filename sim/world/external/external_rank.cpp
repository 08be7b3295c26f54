#include "sim/world/external/external_rank.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "base/elapsed.h"
#include "base/error.h"
#include "sim/world/process/ending_codec.h"
#include "sim/world/process/inbox.h"
#include "sim/world/process/lives.h"
#include "sim/world/process/process_clock.h"
#include "sim/world/process/wire.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim {
namespace {

constexpr char kControlKey[] = "control";
constexpr auto kHeartbeatPeriod = std::chrono::milliseconds(200);
constexpr int kControlGone = 3;

// Equal where processes see each other under /proc: one kernel, one process namespace.
std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  std::error_code hidden;
  return id + " " + std::filesystem::read_symlink("/proc/self/ns/pid", hidden).string();
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof(name) - 1);
  return name;
}

bool is_loopback(const std::string& host) {
  return host == "localhost" || host.rfind("127.", 0) == 0 || host == "::1";
}

// A socket that listens on any free port; on loopback only when all ranks are here.
OwnedFd listen_anywhere(bool loopback, int* port) {
  OwnedFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(loopback ? INADDR_LOOPBACK : INADDR_ANY);
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), plain, size) != 0 || ::listen(listener.get(), 1024) != 0 ||
      ::getsockname(listener.get(), plain, &size) != 0) {
    throw InternalError("no port to listen on for the other ranks");
  }
  *port = ntohs(address.sin_port);
  return listener;
}

OwnedFd connect_to(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) == 0) {
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, ::freeaddrinfo);
    for (const addrinfo* at = found; at; at = at->ai_next) {
      OwnedFd socket(::socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, at->ai_protocol));
      if (::connect(socket.get(), at->ai_addr, at->ai_addrlen) != 0) continue;
      const int on = 1;
      ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
      return socket;
    }
  }
  throw Error(
      {.kind = ErrorKind::kFailed,
       .what = fmt::format("the control process of rank 0 at {}:{} cannot be reached", host, port),
       .fix = "let MASTER_ADDR name rank 0's host, and open its ports to the other hosts",
       .code = "aborted"});
}

std::string random_token() {
  unsigned char bytes[16];
  SHARDPROOF_ASSERT(::getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes), "no random bytes");
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}

std::string encode(const ExternalHello& hello) {
  return nlohmann::json{{"rank", hello.rank},
                        {"token", hello.token},
                        {"host", hello.host},
                        {"boot", hello.boot},
                        {"pid", hello.pid}}
      .dump();
}

std::optional<ExternalHello> decode_hello(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  try {
    return ExternalHello{json.at("rank"), json.at("token"), json.at("host"), json.at("boot"),
                         json.at("pid")};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

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

// Where control is, in memory that all lives of a rank share: the store at which the first life
// asks may live in a rank that has ended since.
class SharedAddress {
 public:
  SharedAddress()
      : text_(static_cast<char*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    SHARDPROOF_ASSERT(text_ != MAP_FAILED, "no memory for an address");
  }
  ~SharedAddress() { ::munmap(text_, kBytes); }
  SharedAddress(const SharedAddress&) = delete;
  SharedAddress& operator=(const SharedAddress&) = delete;

  std::string get() const { return text_; }  // "" not known yet
  void set(const std::string& address) {
    SHARDPROOF_ASSERT(address.size() < kBytes, "an address of a host, a port and a token");
    std::memcpy(text_, address.c_str(), address.size() + 1);
  }

 private:
  static constexpr size_t kBytes = 1024;
  char* text_;
};

// The rank's side of the connection.
class ExternalRank {
 public:
  ExternalRank(const ExternalPlace& place, const WorkerFunctions& functions, Backend backend,
               DeviceKind device)
      : place_(place), functions_(functions) {
    prepare_rank_process();
    WorldSetup& setup = setup_;
    setup.backend = backend;
    setup.device = device;
    setup.world_size = place.world_size;
    setup.rank = place.rank;
    setup.local_rank = place.local_rank;
    setup.store = {.host = place.master_addr,
                   .port = place.master_port,
                   .host_it = place.rank == 0 && !place.store_is_hosted,
                   .prefix = "shardproof/" + place.run_id};
    setup.on_start = [](int64_t) {};
    setup.on_call = [this](int64_t, const CallLine& line) {
      send(FrameType::kCallLine, encode_line(line));
    };
    setup.on_fault = [this](int64_t rank, const FaultNote& note) {
      send(FrameType::kFault, encode(rank, note));
    };
    session_ = functions.make_world(setup);
  }

  void publish(const std::string& address) { session_.exchange(kControlKey, address); }

  void connect(SharedAddress& known) {
    if (known.get().empty()) known.set(session_.exchange(kControlKey, ""));
    const std::string address = known.get();  // "host port token"
    const size_t port = address.find(' ');
    const size_t token = address.find(' ', port + 1);
    SHARDPROOF_ASSERT(token != std::string::npos, "an address of three words");
    socket_ = connect_to(address.substr(0, port), address.substr(port + 1, token - port - 1));
    send(FrameType::kHello, encode(ExternalHello{place_.rank, address.substr(token + 1),
                                                 host_name(), boot_id(), ::getpid()}));
    join_generation();
    std::thread([this] { beat(); }).detach();
  }

  [[noreturn]] void serve() {
    Inbox inbox(socket_.get(), kControlGone, [](const Frame& frame) {
      if (frame.type == FrameType::kExit) ::_exit(std::stoi(frame.payload));
      if (frame.type == FrameType::kAbort) ::_exit(kNextLife);
    });
    OwnedFd golden;
    for (;;) {
      const Frame frame = inbox.next();
      if (frame.type == FrameType::kGolden) {
        golden = open_golden(frame.payload);
        continue;
      }
      std::vector<RankEnding> endings;
      try {
        endings = session_.run(frame.payload, golden.get());
      } catch (...) {
        endings = endings_of_exception(place_.rank, place_.world_size);
      }
      golden = OwnedFd();
      send(FrameType::kEndings, encode(endings));
    }
  }

 private:
  // Control says which world this is, when it has taken the rank in. A world made anew meets under
  // keys of its own.
  void join_generation() {
    const auto welcome = read_one_frame(socket_.get(), 64);
    if (!welcome) ::_exit(kControlGone);
    if (welcome->payload == "0") return;
    setup_.store.prefix += "/" + welcome->payload;
    session_ = functions_.make_world(setup_);
  }

  void send(FrameType type, const std::string& payload) {
    const std::lock_guard lock(mutex_);
    if (socket_.valid() && !send_frame(socket_.get(), type, payload)) ::_exit(kControlGone);
  }

  void beat() {
    for (;;) {
      send(FrameType::kHeartbeat,
           nlohmann::json{{"cpu_s", cpu_seconds_of(::getpid())}, {"runnable", others_runnable()}}
               .dump());
      std::this_thread::sleep_for(kHeartbeatPeriod);
    }
  }

  // This thread itself is running while it looks: one runnable thread is no sign of work.
  static bool others_runnable() { return runnable_threads(::getpid()) > 1; }

  ExternalPlace place_;
  WorkerFunctions functions_;
  WorldSetup setup_;
  WorldSession session_;
  std::mutex mutex_;
  OwnedFd socket_;
};

// Life after life. `address` of control: what rank 0 tells the others in its first; "" other ranks.
[[noreturn]] void live_as_rank(const ExternalPlace& place, Backend backend, DeviceKind device,
                               const WorkerFunctions& functions, const std::string& address) {
  SharedAddress known;
  known.set(address);
  run_lives([&](int64_t life) {
    try {
      ExternalRank rank(place, functions, backend, device);
      if (!address.empty() && life == 0) rank.publish(address);
      rank.connect(known);
      rank.serve();
    } catch (const std::exception& error) {
      // In a later life control has most likely gone, and said all there is to say.
      if (life == 0) {
        const std::string text = fmt::format("shardproof: rank {}: {}\n", place.rank, error.what());
        ::dprintf(STDERR_FILENO, "%s", text.c_str());
      }
      ::_exit(kControlGone);
    }
  });
}

}  // namespace

void serve_external_rank(const ExternalPlace& place, Backend backend, DeviceKind device,
                         const WorkerFunctions& functions) {
  live_as_rank(place, backend, device, functions, "");
}

ExternalHost::ExternalHost(const ExternalPlace& place, Backend backend, DeviceKind device,
                           const WorkerFunctions& functions)
    : place_(place), token_(random_token()) {
  const bool loopback = is_loopback(place.master_addr);
  int port = 0;
  listener_ = listen_anywhere(loopback, &port);
  const pid_t control = ::getpid();
  child_ = ::fork();
  SHARDPROOF_ASSERT(child_ >= 0, "rank 0 cannot be forked");
  if (child_ > 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != control) ::_exit(kControlGone);
  ::setpgid(0, 0);
  listener_.reset();
  live_as_rank(place, backend, device, functions,
               fmt::format("{} {} {}", loopback ? "127.0.0.1" : place.master_addr, port, token_));
}

ExternalHost::~ExternalHost() {
  for (int waited_ms = 0; waited_ms < 1000; ++waited_ms) {
    if (::waitpid(child_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(child_, SIGKILL);
  ::waitpid(child_, nullptr, 0);
}

std::vector<ExternalHost::Peer> ExternalHost::accept_all(int64_t generation, double limit_s,
                                                         const std::function<bool()>& stop) {
  const auto start = std::chrono::steady_clock::now();
  const std::string own_boot = boot_id();
  std::vector<Peer> peers(static_cast<size_t>(place_.world_size));
  std::set<int64_t> missing;
  for (int64_t rank = 0; rank < place_.world_size; ++rank) missing.insert(rank);
  while (!missing.empty() && !stop()) {
    if (seconds_since(start) > limit_s) {
      throw Error({.kind = ErrorKind::kFailed,
                   .what = fmt::format("ranks {} did not come within {:g} s",
                                       fmt::join(missing, ", "), limit_s),
                   .fix = "look at what they printed, and whether they reach " + place_.master_addr,
                   .code = "hung"});
    }
    pollfd wait{listener_.get(), POLLIN, 0};
    if (::poll(&wait, 1, 100) <= 0) continue;
    OwnedFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const timeval patience{5, 0};  // for the hello
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const auto first = read_one_frame(socket.get(), 4096);
    const auto hello = first ? decode_hello(first->payload) : std::nullopt;
    if (!hello || hello->token != token_ || missing.erase(hello->rank) == 0)
      continue;  // a stranger
    if (!send_frame(socket.get(), FrameType::kHello, std::to_string(generation))) {
      missing.insert(hello->rank);  // it has died in the meantime; its next life is on its way
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    Peer& peer = peers[static_cast<size_t>(hello->rank)];
    peer.socket = std::move(socket);
    peer.same_host = !own_boot.empty() && hello->boot == own_boot;
    peer.hello = *hello;
  }
  return missing.empty() ? std::move(peers) : std::vector<Peer>();
}

}  // namespace shardproof::sim
