// Memory and refusals of a refit; scenarios/policy checks that every weight arrives.
#include "policy/refit.h"

#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "policy/shared_pages.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_ranks.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kTrainers = 3, kReceivers = 2;
const Layout kRows({Cut::chunk(0, "dp")}), kColumns({Cut::even(1, "tp")});

// [7 + i, 64] each: 3.5 kB to 5.5 kB.
std::vector<at::Tensor> full_tensors() {
  std::vector<at::Tensor> full;
  for (int64_t i = 0; i < 5; ++i) full.push_back(random_tensor({7 + i, 64}, 40 + i));
  return full;
}

std::string key_of(size_t i) { return "layers." + std::to_string(i) + ".weight"; }

std::vector<HeldTensor> held_by(const Mesh& mesh, int64_t rank, const Layout& layout) {
  std::vector<HeldTensor> held;
  for (const at::Tensor& full : full_tensors()) {
    held.push_back(
        {key_of(held.size()), cut(full, layout, mesh, rank), full.sizes().vec(), layout});
  }
  return held;
}

// The buckets of a refit that are still in memory; another thread may release one last.
class BucketWatch {
 public:
  void add(const at::Tensor& memory) {
    buckets_.emplace_back(memory.storage().getWeakStorageImpl(),
                          static_cast<int64_t>(memory.nbytes()));
    most_ = std::max(most_, left(buckets_.back().second));
  }
  // Waits up to two seconds until at most `allowed` bytes are left, and returns the bytes left.
  int64_t left(int64_t allowed = 0) const {
    for (int i = 0; i < 2000 && bytes() > allowed; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return bytes();
  }
  int64_t most() const { return most_; }

 private:
  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [memory, size] : buckets_) sum += memory.expired() ? 0 : size;
    return sum;
  }
  int64_t most_ = 0;
  std::vector<std::pair<c10::weak_intrusive_ptr<c10::StorageImpl>, int64_t>> buckets_;
};

// A world of trainers, followed by receivers.
struct Refit {
  RefitOptions options = {.dtype = at::kDouble, .budget_bytes = 10000};
  std::function<void(std::vector<HeldTensor>&)> spoil = {};  // changes the receivers' requests
  int64_t throws_at = -1;                                    // before this bucket
  BucketWatch watch = {};
  std::vector<std::vector<HeldTensor>> received{kReceivers};

  RankRuns run() {
    const Mesh trainers = Mesh::training({.dp = kTrainers});
    const Mesh receivers = Mesh::training({.tp = kReceivers});
    options.before_bucket = [this](int64_t bucket, const at::Tensor& memory) {
      watch.add(memory);
      if (bucket == throws_at) throw std::runtime_error("no more");
    };
    return try_emulated_ranks(
        Mesh::training({.dp = kTrainers + kReceivers}), [&](MeshComm& comm, int64_t rank) {
          const auto group = [&]() -> Communicator& { return comm.of_ranks("refit", {0, 3, 4}); };
          if (rank >= kTrainers) {
            auto& wanted = received[static_cast<size_t>(rank - kTrainers)];
            wanted = held_by(receivers, rank - kTrainers, kColumns);
            for (HeldTensor& tensor : wanted) tensor.piece.fill_(77);
            if (spoil) spoil(wanted);
            receive_refit(wanted, receivers, rank - kTrainers, group(), at::kCPU);
            return;
          }
          MeshComm trainer = comm.on_mesh("trainer", trainers);
          const auto held = held_by(trainers, rank, kRows);
          send_refit(held, options, trainer, rank == 0 ? &group() : nullptr, at::kCPU);
        });
  }
};

const RefitPath kPaths[] = {RefitPath::kBroadcast, RefitPath::kSharedMemory};

TEST_CASE("rank 0 holds one bucket of full tensors at most, and none afterwards",
          "[policy][PW-6]") {
  for (const RefitPath path : kPaths) {
    for (const int64_t budget : {int64_t{1}, int64_t{10000}, int64_t{1} << 20}) {
      Refit refit;
      refit.options.path = path;
      refit.options.budget_bytes = budget;
      rethrow_first(refit.run());
      CHECK(refit.watch.most() <= std::max<int64_t>(budget, 11 * 64 * 8));
      CHECK(refit.watch.left() == 0);
    }
  }
}

TEST_CASE("full tensors are let go when the refit throws", "[policy][PW-6]") {
  for (const RefitPath path : kPaths) {
    Refit refit;
    refit.options.path = path;
    refit.throws_at = 1;
    const RankRuns runs = refit.run();
    CHECK_THAT(runs.error_text(0), Catch::Contains("no more"));
    CHECK(refit.watch.left() == 0);
    CHECK(runs.error_code(3) == "aborted");
    CHECK(refit.received[0][4].piece.eq(77).all().item<bool>());
  }
}

TEST_CASE("a receiver that wants something else says what, and nobody is left waiting",
          "[policy][PW-6]") {
  using Wanted = std::vector<HeldTensor>;
  const std::vector<std::pair<std::function<void(Wanted&)>, std::string>> wrong = {
      {[](Wanted& wanted) { wanted[1].key = "layers.1.weigth"; },
       "'layers.1.weight' is sent, and this receiver has no such tensor"},
      {[](Wanted& wanted) { wanted.push_back(wanted[0]), wanted.back().key = "more"; },
       "'more' is wanted and not sent"},
      {[](Wanted& wanted) { wanted[2].piece = wanted[2].piece.to(at::kFloat); },
       "'layers.2.weight' is sent as Double [9, 64], this receiver has Float [9, 64]"},
      {[](Wanted& wanted) { wanted[2].global_shape[0] = 10; }, "this receiver has Double [10, 64]"},
  };
  for (const auto& [spoil, sentence] : wrong) {
    Refit refit;
    refit.spoil = spoil;
    const RankRuns runs = refit.run();
    CHECK_THAT(runs.error_text(3), Catch::Contains(sentence));
    // The error comes from the refit group, or from the world that a receiver's error stopped.
    for (const int64_t rank : {0, 1, 2}) CHECK(runs.error_text(rank) != "");
    REQUIRE(runs.failure);
    CHECK(runs.failure->code == "threw");
    CHECK(refit.watch.most() == 0);
  }
}

TEST_CASE("buckets fill the budget, and a tensor that is larger goes alone", "[policy][PW-6]") {
  const auto of_bytes = [](int64_t bytes) { return RefitTensor{"", {bytes}, at::kByte}; };
  const RefitInfo info = {of_bytes(32), of_bytes(32), of_bytes(32), of_bytes(100),
                          of_bytes(5),  of_bytes(0),  of_bytes(17)};
  const auto sizes = [&](int64_t budget) {
    std::vector<size_t> counts;
    for (const RefitBucket& bucket : refit_buckets(info, budget)) {
      if (bucket.offsets.size() > 1) CHECK(bucket.bytes <= budget);
      counts.push_back(bucket.offsets.size());
    }
    return counts;
  };
  CHECK(sizes(64) == std::vector<size_t>{2, 1, 1, 3});
  CHECK(sizes(63) == std::vector<size_t>{1, 1, 1, 1, 3});
  CHECK(sizes(1000) == std::vector<size_t>{7});
  CHECK(sizes(1).size() == 7);
  CHECK_THROWS_WITH(refit_buckets(info, 0), Catch::Contains("a byte budget of 0 holds no tensor"));
}

TEST_CASE("pages are the same in another process, and strangers are refused", "[policy][PW-6]") {
  const SharedPages pages = SharedPages::create(4096);
  pages.bytes().fill_(5);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const SharedPages same = SharedPages::open(pages.address());
      ::_exit(same.bytes().const_data_ptr<uint8_t>()[4095] == 5 ? 0 : 1);
    } catch (...) {
    }
    ::_exit(2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  SharedAddress other = pages.address();
  other.host += 1;
  CHECK_THROWS_WITH(SharedPages::open(other), Catch::Contains("it is on another host"));
  other = pages.address();
  other.inode += 1;
  CHECK_THROWS_WITH(SharedPages::open(other), Catch::Contains("another file is there"));
  other = pages.address();
  other.descriptor = 12345;
  CHECK_THROWS_WITH(SharedPages::open(other), Catch::Contains("No such file"));
}

}  // namespace
}  // namespace shardproof::tests
