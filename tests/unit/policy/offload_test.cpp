// Parameters and optimizer state move to the host and back, and the next step does not change.
#include "policy/offload.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <new>

#include "tests/unit/policy/small_worker.h"

namespace shardproof::tests {
namespace {

void offload_and_reload(Trainer& trainer) {
  const HeldBytes before = trainer.held_bytes();
  Offloaded optimizer(trainer, Offloaded::What::kOptimizer);
  MUST(trainer.held_bytes().optimizer == 0);
  MUST(trainer.held_bytes().parameters == before.parameters);
  optimizer.reload();
  Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
  MUST(trainer.held_bytes().parameters == 0);
  all.reload();
  MUST(trainer.held_bytes().parameters == before.parameters);
  MUST(trainer.held_bytes().optimizer == before.optimizer);
}

TEST_CASE("offloaded and reloaded between steps, training is the same to the bit",
          "[policy][PW-7]") {
  for (const DataParallelKind kind : {DataParallelKind::kReplicate, DataParallelKind::kFsdp}) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16}) {
      Trial trial{.mesh = Mesh::training({.dp = 2, .tp = 3}), .dtype = dtype};
      trial.parallel.data.kind = kind;
      const auto run = [&](bool offloads) {
        return train_with(trial, [&](Trainer& trainer, MeshComm&) {
          for (int64_t i = 0; i < 3; ++i) {
            if (offloads) offload_and_reload(trainer);
            trainer.step(small_batch());
          }
        });
      };
      CHECK(difference(run(false), run(true), 0) == "");
    }
  }
}

// Replaces the allocator of the CPU while it exists, and refuses all but the next `left` requests.
class ScarceMemory final : public c10::Allocator {
 public:
  ScarceMemory() { c10::SetCPUAllocator(this); }
  ~ScarceMemory() override { c10::SetCPUAllocator(inner_); }
  at::DataPtr allocate(size_t bytes) override {
    if (left-- <= 0) throw std::bad_alloc();
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }
  static constexpr int64_t kPlenty = int64_t{1} << 60;
  std::atomic<int64_t> left = kPlenty;

 private:
  c10::Allocator* inner_ = c10::GetCPUAllocator();
};

TEST_CASE("without memory for a copy nothing moves, and without memory to return nothing is lost",
          "[policy][PW-7]") {
  Trial trial{.mesh = Mesh::training({}), .dtype = at::kBFloat16, .steps = 2};
  const Trained golden = train(trial);
  trial.steps = 0;
  ScarceMemory memory;
  const Trained actual = train_with(trial, [&](Trainer& trainer, MeshComm&) {
    const auto refused = [&](const std::function<void()>& work) {
      memory.left = 3;
      must_throw("bad_alloc", work);
      memory.left = ScarceMemory::kPlenty;
    };
    trainer.step(small_batch());
    const HeldBytes before = trainer.held_bytes();
    refused([&] { Offloaded(trainer, Offloaded::What::kParametersAndOptimizer); });
    MUST(trainer.held_bytes().parameters == before.parameters);
    MUST(trainer.held_bytes().optimizer == before.optimizer);
    Offloaded all(trainer, Offloaded::What::kParametersAndOptimizer);
    refused([&] { all.reload(); });
    all.reload();
    trainer.step(small_batch());
  });
  CHECK(difference(golden, actual, 0) == "");
}

}  // namespace
}  // namespace shardproof::tests
