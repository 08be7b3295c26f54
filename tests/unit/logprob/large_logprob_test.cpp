// A real size, run by name: unit_logprob "[large]" prints the times of a forward and backward.
#include <catch2/catch.hpp>
#include <chrono>
#include <ctime>

#include "logprob/vocab_parallel_logprob.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests::large_logprob_test {
namespace {

constexpr int64_t kTokens = 4096, kVocab = 32768;

// Wall time and the thread's CPU time of the slower rank in the fastest of three runs, and the
// largest error of logprobs.
struct Measured {
  double milliseconds = 0, cpu_milliseconds = 0, error = 0;
};

double thread_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

Measured measure(at::ScalarType dtype) {
  std::vector<Measured> ranks(2);
  const at::Tensor target = spread_ids({1, kTokens}, kVocab);
  on_every_rank_of(
      World::kGloo, Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        at::Generator generator = at::detail::createCPUGenerator(5);
        const at::Tensor full =
            at::randn({1, kTokens, kVocab}, generator, at::TensorOptions().dtype(at::kFloat))
                .to(dtype);
        const at::Tensor leaf = full.chunk(2, -1)[static_cast<size_t>(rank)].contiguous();
        leaf.requires_grad_();
        const at::Tensor grad = random_tensor({1, kTokens}, 2).to(at::kFloat);
        Measured& own = ranks[static_cast<size_t>(rank)];
        own.milliseconds = own.cpu_milliseconds = 1e9;
        at::Tensor out;
        for (int i = 0; i < 3; ++i) {
          comm.along("tp").barrier("start");
          const auto start = std::chrono::steady_clock::now();
          const double cpu_start = thread_milliseconds();
          out = vocab_parallel_logprob(leaf, target, comm.along("tp"), kVocab);
          out.backward(grad);
          leaf.mutable_grad() = at::Tensor();
          const std::chrono::duration<double, std::milli> took =
              std::chrono::steady_clock::now() - start;
          own.milliseconds = std::min(own.milliseconds, took.count());
          own.cpu_milliseconds = std::min(own.cpu_milliseconds, thread_milliseconds() - cpu_start);
        }
        for (int64_t begin = 0; begin < kTokens; begin += 512) {
          const at::Tensor golden = at::log_softmax(full.narrow(1, begin, 512).to(at::kDouble), -1)
                                        .gather(-1, target.narrow(1, begin, 512).unsqueeze(-1))
                                        .squeeze(-1);
          const at::Tensor error = (golden - out.detach().narrow(1, begin, 512)).abs().max();
          own.error = std::max(own.error, error.item<double>());
        }
        return {};
      });
  return {.milliseconds = std::max(ranks[0].milliseconds, ranks[1].milliseconds),
          .cpu_milliseconds = std::max(ranks[0].cpu_milliseconds, ranks[1].cpu_milliseconds),
          .error = std::max(ranks[0].error, ranks[1].error)};
}

TEST_CASE("logprobs of 4096 tokens over 32768 ids on two ranks are within 1e-5 of float64",
          "[.][large][LP-8]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Measured measured = measure(dtype);
    WARN(c10::toString(dtype) << " forward and backward " << measured.milliseconds
                              << " ms, of them computing " << measured.cpu_milliseconds
                              << " ms, largest error " << measured.error);
    CHECK(measured.error <= 1e-5);
  }
}

}  // namespace
}  // namespace shardproof::tests::large_logprob_test
