// Ranks that another launcher started: this test is that launcher and forks them.
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/error.h"
#include "sim/world/external/external_place.h"
#include "sim/world/external/external_rank.h"
#include "tests/multirank/small_ranks.h"

namespace shardproof::sim::world {
namespace {

using namespace std::chrono_literals;

int free_port() {
  const OwnedFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

// Ranks 1 and up as forked processes; rank 0's process is the test.
class Launched {
 public:
  // `change`: what is different for these ranks.
  explicit Launched(int64_t world_size, const std::function<void(ExternalPlace&)>& change = {}) {
    place.launcher = "test";
    place.world_size = world_size;
    place.master_addr = "127.0.0.1";
    place.master_port = free_port();
    place.run_id = "test.0";
    place.on_one_host = true;
    place.secret = "the ranks of this test share this";
    for (int64_t rank = 1; rank < world_size; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ExternalPlace own = place;
        own.rank = own.local_rank = rank;
        if (change) change(own);
        serve_external_rank(own, Backend::kGloo, DeviceKind::kCpu, small_workers());
      }
      pids.push_back(pid);
    }
  }
  ~Launched() {
    for (const pid_t pid : pids) ::kill(pid, SIGKILL);
    exit_statuses();
  }
  std::vector<int> exit_statuses() {
    std::vector<int> statuses;
    for (const pid_t pid : pids) {
      int status = 0;
      if (::waitpid(pid, &status, 0) != pid) continue;
      statuses.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
    }
    pids.clear();
    return statuses;
  }

  ExternalPlace place;
  std::vector<pid_t> pids;
};

// Such ranks as the world of a pool.
struct Adopted : Launched {
  explicit Adopted(int64_t world_size) : Launched(world_size) {
    pool.adopt(host, Backend::kGloo, DeviceKind::kCpu);
  }
  std::vector<RankEnding> run(const std::vector<FaultSpec>& faults = {}) {
    CaseSpec spec = small_case("gloo", place.world_size);
    spec.faults = faults;
    return pool.run_case(spec, -1, false);
  }
  // The process of the last rank, after a correct case.
  std::string last_of_right_case() {
    const auto endings = run();
    for (const RankEnding& ending : endings) {
      INFO(ending.message);
      CHECK(ending.kind == ResultKind::kFinished);
    }
    return endings.back().bytes;
  }

  ExternalHost host{place, Backend::kGloo, DeviceKind::kCpu, small_workers()};
  WorldPool pool{small_workers()};
};

TEST_CASE("ranks that another launcher started run the cases and share one exit status",
          "[external]") {
  Adopted world(3);
  const std::string process_of_2 = world.last_of_right_case();
  CHECK(world.last_of_right_case() == process_of_2);
  // A rank that hangs is named, is there in the next case, and hears the exit status.
  for (const bool first : {true, false}) {
    const auto endings = world.run({{.kind = FaultKind::kHang, .rank = 1, .label = "layer 1"}});
    CHECK(endings[1].kind == ResultKind::kHung);
    CHECK(endings[0].kind == ResultKind::kAborted);
    if (first) world.last_of_right_case();
  }
  world.pool.dismiss(7);
  CHECK(world.exit_statuses() == std::vector<int>{7, 7});
}

TEST_CASE("a rank of another launcher that dies is named, and the world is made anew",
          "[external]") {
  Adopted world(3);
  for (const int64_t victim : {2, 0}) {
    const auto endings =
        world.run({{.kind = FaultKind::kKill, .rank = victim, .label = "layer 1"}});
    for (const RankEnding& ending : endings) {
      INFO(ending.rank << ": " << ending.message);
      CHECK(ending.kind == (ending.rank == victim ? ResultKind::kDied : ResultKind::kAborted));
    }
    const auto& dead = endings[static_cast<size_t>(victim)];
    CHECK_THAT(dead.message, Catch::Contains("rank " + std::to_string(victim) + ", pid "));
    REQUIRE(dead.faults.size() == 1);
    CHECK(dead.faults[0].fired);
    world.last_of_right_case();
  }
  world.pool.dismiss(3);
  CHECK(world.exit_statuses() == std::vector<int>{3, 3});
}

TEST_CASE("a rank that a signal has stopped is killed, and the world is made anew", "[external]") {
  Adopted world(2);
  const std::string before = world.last_of_right_case();
  const std::string number = std::to_string(world.pids.back());
  pid_t rank = 0;  // a child of what the launcher started
  std::ifstream("/proc/" + number + "/task/" + number + "/children") >> rank;
  REQUIRE(::kill(rank, SIGSTOP) == 0);
  CHECK(world.run().back().kind != ResultKind::kFinished);
  CHECK(world.last_of_right_case() != before);
  world.pool.dismiss(3);
  CHECK(world.exit_statuses() == std::vector<int>{3});
}

TEST_CASE("two processes of one rank are told apart from one that is late", "[external]") {
  Launched launched(3, [](ExternalPlace& place) { place.rank = 1; });
  ExternalHost host(launched.place, Backend::kGloo, DeviceKind::kCpu, small_workers());
  CHECK_THROWS_WITH(
      host.accept_all(3, [] { return false; }),
      Catch::Contains("rank 2 did not come within 3 s; rank 1 came twice, as process ") &&
          Catch::Contains("give each process a RANK of its own"));
}

TEST_CASE("ranks that cannot start again leave a sentence for each later case", "[external]") {
  Adopted world(2);
  for (const pid_t pid : world.pids) ::kill(pid, SIGKILL);  // its rank ends with it
  world.exit_statuses();
  world.run();
  const auto later = world.run();
  REQUIRE(later.size() == 2);
  CHECK(later[0].kind == ResultKind::kAborted);
  CHECK_THAT(later[0].message, Catch::Contains("not run: an earlier case ended the ranks") &&
                                   Catch::Contains("rank 1 did not come"));
}

TEST_CASE("ranks exit when control goes without a word", "[external]") {
  Launched launched(2);
  {
    ExternalHost host(launched.place, Backend::kGloo, DeviceKind::kCpu, small_workers());
    WorldPool pool(small_workers());
    pool.adopt(host, Backend::kGloo, DeviceKind::kCpu);
  }
  CHECK(launched.exit_statuses() == std::vector<int>{3});
}

TEST_CASE("a rank with another secret is refused, counted, and exits with a sentence",
          "[external]") {
  Launched launched(2, [](ExternalPlace& place) { place.secret = "another secret, as long"; });
  ExternalHost host(launched.place, Backend::kGloo, DeviceKind::kCpu, small_workers());
  CHECK_THROWS_WITH(
      host.accept_all(3, [] { return false; }),
      Catch::Contains("rank 1 did not come within 3 s; 1 connection without the secret was "
                      "refused, from 127.0.0.1"));
  CHECK(launched.exit_statuses() == std::vector<int>{2});
}

TEST_CASE("ranks that come late are waited for as long as the place says", "[external]") {
  Launched launched(1);
  launched.place.world_size = 2;
  launched.place.meeting_s = 1;
  ExternalHost host(launched.place, Backend::kGloo, DeviceKind::kCpu, small_workers());
  WorldPool pool(small_workers());
  CHECK_THROWS_WITH(pool.adopt(host, Backend::kGloo, DeviceKind::kCpu),
                    Catch::Contains("did not come within 1 s"));
}

TEST_CASE("a rank that proves itself and then says nothing keeps control waiting for seconds",
          "[external]") {
  Launched launched(1);
  launched.place.world_size = 2;
  ExternalHost host(launched.place, Backend::kGloo, DeviceKind::kCpu, small_workers());
  std::atomic<bool> done = false, proved = false;
  std::thread silent([&] {
    const OwnedFd socket = connect_to({"127.0.0.1", launched.place.master_port}, 10s);
    RankHandshake handshake(launched.place.secret, 1, 2);
    const std::string answer = handshake.answer(*receive(socket.get(), kGreetingBytes, 10s));
    proved = ::send(socket.get(), answer.data(), answer.size(), 0) > 0 &&
             receive(socket.get(), kReplyBytes, 10s).has_value();
    while (!done) std::this_thread::sleep_for(10ms);
  });
  CHECK_THROWS_WITH(host.accept_all(4, [] { return false; }),
                    Catch::Contains("did not come within 4 s"));
  done = true;
  silent.join();
  CHECK(proved);
}

TEST_CASE("a rank waits for torchrun's store for as long as its place says", "[external]") {
  CHECK_THROWS_WITH(small_workers().exchange({"127.0.0.1", free_port(), 1s}, "key", ""),
                    Catch::Contains("1000ms"));
}

// Hosts torchrun's store with such an entry, in a process of its own: the store starts threads, and
// worlds are forked from this process.
pid_t host_forged_entry(int port, const std::string& entry) {
  const pid_t host = ::fork();
  REQUIRE(host >= 0);
  if (host > 0) return host;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(port);
  options.isServer = true;
  options.waitWorkers = false;
  const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  store->set("shardproof/test.0/control", std::vector<uint8_t>(entry.begin(), entry.end()));
  for (;;) ::pause();
}

// Ranks of a torchrun whose store somebody else has written to.
std::vector<int> statuses_with_forged_entry(const std::string& entry) {
  Launched launched(2, [](ExternalPlace& place) { place.store_is_hosted = true; });
  const pid_t host = host_forged_entry(launched.place.master_port, entry);
  std::vector<int> statuses = launched.exit_statuses();
  ::kill(host, SIGKILL);
  ::waitpid(host, nullptr, 0);
  return statuses;
}

TEST_CASE("a forged entry of torchrun's store ends a rank with a sentence, and it says nothing",
          "[external]") {
  CHECK(statuses_with_forged_entry("") == std::vector<int>{2});
  CHECK(statuses_with_forged_entry("a host and no port") == std::vector<int>{2});
  CHECK(statuses_with_forged_entry("127.0.0.1 65536") == std::vector<int>{2});
  CHECK(statuses_with_forged_entry(std::string(5000, 'x') + " 80") == std::vector<int>{2});
  // An impostor of control, who does all that he can without the secret.
  RankListener impostor(listen_at("127.0.0.1", 0, true), "what the impostor knows", 2);
  std::thread serving([&impostor] {
    for (int i = 0; i < 50 && impostor.refusals().empty(); ++i) {
    }
  });
  CHECK(statuses_with_forged_entry(fmt::format("127.0.0.1 {}", impostor.address().port)) ==
        std::vector<int>{2});
  serving.join();
  CHECK(impostor.refusals() == "1 connection without the secret was refused, from 127.0.0.1");
}

std::map<std::string, std::string> torchrun_variables() {
  return {{"RANK", "3"},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "host-a"},
          {"MASTER_PORT", "29501"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "job"},
          {"TORCHELASTIC_RESTART_COUNT", "2"}};
}

ExternalPlace place_of(const std::map<std::string, std::string>& variables) {
  return external_place([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional<std::string>(found->second);
  });
}

TEST_CASE("the place of a rank is read from what its launcher sets", "[external]") {
  const ExternalPlace torchrun = place_of(torchrun_variables());
  CHECK(torchrun.launcher == "torchrun");
  CHECK(torchrun.rank == 3);
  CHECK(torchrun.world_size == 4);
  CHECK(torchrun.local_rank == 1);
  CHECK(torchrun.has_agent);
  CHECK(torchrun.store_is_hosted);
  CHECK(torchrun.run_id == "job.2");
  CHECK_FALSE(torchrun.on_one_host);
  CHECK(torchrun.meeting_s == 120);
  auto patient = torchrun_variables();
  patient["SHARDPROOF_MEETING_S"] = "600";
  CHECK(place_of(patient).meeting_s == 600);
  auto without_store = torchrun_variables();  // with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
  without_store["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  CHECK(place_of(without_store).has_agent);
  CHECK_FALSE(place_of(without_store).store_is_hosted);
  auto by_hand = torchrun_variables();
  by_hand.erase("TORCHELASTIC_RUN_ID");
  CHECK_FALSE(place_of(by_hand).has_agent);
  const ExternalPlace mpirun = place_of({{"OMPI_COMM_WORLD_RANK", "0"},
                                         {"OMPI_COMM_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "localhost"},
                                         {"MASTER_PORT", "1234"}});
  CHECK(mpirun.launcher == "mpirun");
  CHECK_FALSE(mpirun.store_is_hosted);
  CHECK(mpirun.on_one_host);  // loopback
  std::map<std::string, std::string> of_slurm = {{"SLURM_PROCID", "5"},
                                                 {"SLURM_NTASKS", "8"},
                                                 {"SLURM_LOCALID", "1"},
                                                 {"SLURM_STEP_ID", "0"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "8"},
                                                 {"MASTER_ADDR", "n1"},
                                                 {"MASTER_PORT", "1234"}};
  const ExternalPlace srun = place_of(of_slurm);
  CHECK(srun.rank == 5);
  CHECK(srun.local_rank == 1);
  CHECK(srun.on_one_host);          // as many there as in all
  of_slurm.erase("SLURM_STEP_ID");  // as in a batch script
  CHECK_THROWS_AS(place_of(of_slurm), Error);
}

TEST_CASE("a place that makes no sense is a sentence", "[external]") {
  struct Change {
    std::string name;
    std::optional<std::string> value;  // nothing: it is not set
    std::string words;
  };
  const Change changes[] = {
      {"RANK", {}, "no launcher"},
      {"RANK", "4", "RANK='4' is not a number from 0 to 3"},
      {"RANK", "two", "RANK='two'"},
      {"WORLD_SIZE", "0", "WORLD_SIZE"},
      {"MASTER_PORT", {}, "export MASTER_ADDR"},
      {"MASTER_PORT", "70000", "MASTER_PORT"},
      {"SHARDPROOF_MEETING_S", "0", "SHARDPROOF_MEETING_S='0' is not a number from 1 to 86400"},
      {"MASTER_ADDR", "", "MASTER_ADDR"},
  };
  for (const Change& change : changes) {
    auto variables = torchrun_variables();
    variables.erase(change.name);
    if (change.value) variables[change.name] = *change.value;
    CHECK_THROWS_WITH(place_of(variables), Catch::Contains(change.words));
  }
}

}  // namespace
}  // namespace shardproof::sim::world
