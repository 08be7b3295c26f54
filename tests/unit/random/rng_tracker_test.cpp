#include "random/rng_tracker.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>

#include "random/rng_seeds.h"
#include "tensor/tensor_memory.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

// Numbers from a stream of this seed without the tracker.
at::Tensor plain_uniform(uint64_t seed, at::IntArrayRef shape, int64_t skip = 0) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  if (skip > 0) at::rand({skip}, generator, at::TensorOptions().dtype(at::kFloat));
  return at::rand(shape, generator, at::TensorOptions().dtype(at::kFloat));
}

// Streams with the seeds 1, 2, ..
RngTracker streams_of(std::initializer_list<const char*> names) {
  RngTracker rng;
  uint64_t seed = 0;
  for (const char* name : names) rng.add(name, ++seed);
  return rng;
}

TEST_CASE("forks nest, and an exception leaves the fork it was thrown in", "[RN-1]") {
  RngTracker rng = streams_of({kDataParallelRng, kModelParallelRng, kExpertParallelRng});
  try {
    const auto outer = rng.fork();
    CHECK(rng.current_stream() == kModelParallelRng);
    {
      const auto inner = rng.fork(kExpertParallelRng);
      rng.uniform({4}, "inner");
    }
    CHECK(rng.current_stream() == kModelParallelRng);
    throw std::runtime_error("in the region");
  } catch (const std::runtime_error&) {
  }
  CHECK(rng.current_stream() == kDataParallelRng);
  CHECK(rng.uniform({6}, "after").equal(plain_uniform(1, {6})));
  CHECK(rng.warnings().empty());
}

TEST_CASE("a seed or a name that is there already is refused and changes nothing", "[RN-1]") {
  RngTracker rng;
  rng.add("one", 11);
  const std::string seed = said_by([&] { rng.add("two", 11); });
  CHECK(contains(seed, "seed 11"));
  CHECK(contains(seed, "'one'"));
  CHECK(contains(said_by([&] { rng.add("one", 12); }), "'one' already"));
  CHECK(rng.states().size() == 1);
  rng.add("two", 12);  // the refused calls added neither the name nor the seed
  CHECK(rng.states().size() == 2);
}

TEST_CASE("a seed of more bits than a generator takes is refused", "[RN-1]") {
  const uint64_t above = uint64_t{1} << 32;
  REQUIRE(plain_uniform(7, {6}).equal(plain_uniform(above + 7, {6})));
  REQUIRE_FALSE(plain_uniform(7, {6}).equal(plain_uniform(7 + above / 2, {6})));
  RngTracker rng;
  rng.add("one", 7);
  CHECK(contains(said_by([&] { rng.add("two", above + 7); }), "seed 4294967303"));
  CHECK(contains(said_by([&] { rng.add("two", above); }), "at most 4294967295"));
  CHECK(rng.states().size() == 1);
  rng.add("two", above - 1);
  CHECK(rng.states().size() == 2);
}

TEST_CASE("a seed is refused on every rank when that of some rank has more bits", "[RN-1]") {
  const int64_t most = (int64_t{1} << 32) - 1;
  for (const int64_t tp_rank : {0, 3}) {
    const RngPlace place{.tp_rank = tp_rank, .tp_size = 4};
    const int64_t largest = most - 2718 - 3;
    CHECK(rng_seeds(largest, place).model == static_cast<uint64_t>(largest + 2718 + tp_rank));
    const std::string text = said_by([&] { rng_seeds(largest + 1, place); });
    CHECK(contains(text, std::to_string(largest + 1)));
    CHECK(contains(text, "at most " + std::to_string(largest)));
  }
  const RngPlace experts{.ep_rank = 0, .ep_size = 30, .etp_rank = 0, .etp_size = 5};
  CHECK(rng_seeds(most - 1024 - 2904, experts).data > 0);
  CHECK(contains(said_by([&] { rng_seeds(most - 1024 - 2903, experts); }), "32 bits"));
}

TEST_CASE("an unknown name is refused with the nearest known one", "[RN-1]") {
  RngTracker rng = streams_of({kModelParallelRng});
  const std::string text = said_by([&] { const auto fork = rng.fork("model-paralel-rng"); });
  CHECK(contains(text, "no random stream 'model-paralel-rng'"));
  CHECK(contains(text, kModelParallelRng));
  CHECK(rng.current_stream() == kDataParallelRng);
  CHECK(contains(said_by([&] { rng.uniform({1}, "dropout of x"); }), "dropout of x"));
}

TEST_CASE("states are copies: taken once, given back as often as one likes", "[RN-1]") {
  RngTracker rng;
  rng.add(kDataParallelRng, 3);
  rng.uniform({5}, "before");
  const RngStates states = rng.states();
  CHECK(states.at(kDataParallelRng).seed == 3);
  CHECK(states.at(kDataParallelRng).offset == 5);
  const at::Tensor once = rng.uniform({8}, "draw");
  for (int again = 0; again < 2; ++again) {
    rng.set_states(states);
    CHECK(rng.uniform({8}, "draw").equal(once));
  }
  RngTracker other;
  other.add("gone", 99);
  other.set_states(states);
  CHECK(other.uniform({8}, "draw").equal(once));
  CHECK(contains(said_by([&] { const auto fork = other.fork("gone"); }), "no random stream"));
  CHECK(contains(said_by([&] { other.add("x", 3); }), "seed 3"));  // states include seeds
}

TEST_CASE("reset drops streams and seeds", "[RN-1]") {
  RngTracker rng;
  rng.add("one", 11);
  rng.reset();
  rng.add("one", 11);
  CHECK(rng.states().size() == 1);
}

TEST_CASE("a stray draw is told once, of the fork that was the innermost", "[RN-1]") {
  RngTracker rng = streams_of({kDataParallelRng, kModelParallelRng, kExpertParallelRng});
  at::rand({3});  // outside of all forks
  {
    const auto outer = rng.fork();
    at::rand({3});
    const auto inner = rng.fork(kExpertParallelRng);
    rng.uniform({2}, "inner");
  }
  REQUIRE(rng.warnings().size() == 1);
  CHECK(contains(rng.warnings()[0], "default generator"));
  CHECK(contains(rng.warnings()[0], kModelParallelRng));
  {
    const auto outer = rng.fork();
    const auto inner = rng.fork(kExpertParallelRng);
    at::rand({3});
  }
  REQUIRE(rng.warnings().size() == 2);
  CHECK(contains(rng.warnings()[1], kExpertParallelRng));
  {
    const auto fork = rng.fork();
    at::rand({3});
    rng.set_states(rng.states());
  }
  CHECK(rng.warnings().size() == 3);
}

TEST_CASE("a stray normal number that was drawn as one of a pair is told", "[RN-1]") {
  RngTracker rng = streams_of({kDataParallelRng, kModelParallelRng});
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::manual_seed(1);  // no number of a pair is kept
    at::randn({1}, at::dtype(dtype));
    const size_t before = rng.warnings().size();
    {
      const auto fork = rng.fork();
      at::randn({1}, at::dtype(dtype));
    }
    CHECK(rng.warnings().size() == before + 1);
  }
}

TEST_CASE("a draw that throws leaves its stream and the log as they were", "[RN-1]") {
  DrawLog log;
  RngTracker rng(&log);
  rng.add(kDataParallelRng, 5);
  rng.uniform({3}, "before");
  CHECK_THROWS(rng.uniform({-2}, "a shape that no tensor has"));
  CHECK(rng.states().at(kDataParallelRng).offset == 3);
  CHECK(log.draws().size() == 1);
  CHECK(rng.uniform({4}, "after").equal(plain_uniform(5, {4}, 3)));
}

TEST_CASE("a fork allocates no tensor", "[RN-1]") {
  RngTracker rng = streams_of({kDataParallelRng, kModelParallelRng});
  TensorMemory memory;
  { const auto fork = rng.fork(); }
  CHECK(memory.peak_bytes() == 0);
}

TEST_CASE("states without the stream of an open fork are refused and change nothing", "[RN-1]") {
  RngTracker rng;
  rng.add(kDataParallelRng, 1);
  const RngStates before = rng.states();
  rng.add(kModelParallelRng, 2);
  rng.uniform({4}, "outside");
  {
    const auto fork = rng.fork();
    CHECK(contains(said_by([&] { rng.set_states(before); }), kModelParallelRng));
    CHECK(rng.uniform({3}, "inside").equal(plain_uniform(2, {3})));
  }
  CHECK(rng.uniform({3}, "outside").equal(plain_uniform(1, {3}, 4)));
  rng.set_states(before);
  CHECK(rng.states().size() == 1);
}

TEST_CASE("an inference tracker takes everything and draws nothing", "[RN-1]") {
  RngTracker rng = RngTracker::for_inference();
  rng.add("one", 1);
  rng.add("one", 1);
  rng.set_states({});
  CHECK(rng.states().empty());
  const auto fork = rng.fork("never added");
  CHECK(contains(said_by([&] { rng.uniform({2}, "dropout of x"); }), "dropout of x"));
}

TEST_CASE("seeds follow the formula, and a mesh on which two would be equal is refused", "[RN-1]") {
  const RngSeeds seeds = rng_seeds(
      1234, {.tp_rank = 3, .tp_size = 4, .ep_rank = 2, .ep_size = 3, .etp_rank = 1, .etp_size = 2});
  CHECK(seeds.data == 1234);
  CHECK(seeds.model == 1234 + 2718 + 3);
  CHECK(seeds.expert == 1234 + 1024 + 200 + 1);
  // 1024 + 100 * 17 = 2718 + 6; the result is the same on every rank.
  for (const int64_t tp_rank : {0, 6}) {
    const std::string text = said_by(
        [&] { rng_seeds(0, {.tp_rank = tp_rank, .tp_size = 8, .ep_rank = 0, .ep_size = 18}); });
    CHECK(contains(text, "expert parallel rank 17"));
    CHECK(contains(text, "tensor parallel rank 6"));
  }
  CHECK(rng_seeds(0, {.tp_size = 6, .ep_size = 18}).model == 2718);
  CHECK(contains(said_by([] { rng_seeds(0, {.ep_size = 2, .etp_size = 101}); }),
                 "expert parallel rank 0, expert tensor parallel rank 100"));
  CHECK(contains(said_by([] { rng_seeds(-1, {}); }), "-1"));
}

TEST_CASE("each stage has seeds of its own, also beside expert parallel ranks", "[RN-1, PP-28]") {
  const RngPlace place{
      .tp_rank = 1, .tp_size = 2, .ep_rank = 1, .ep_size = 2, .stage = 2, .stages = 3};
  const RngSeeds seeds = rng_seeds(1234, place);
  CHECK(seeds.data == 1234 + 200);
  CHECK(seeds.model == 1234 + 200 + 2718 + 1);
  CHECK(seeds.expert == 1234 + 500 + 1024);  // Megatron's 1234 + 300 + 1024 is that of two places
  CHECK(contains(said_by([] { rng_seeds(0, {.tp_size = 101, .stages = 2}); }),
                 "tensor parallel rank 0 of stage 1"));
  // 1024 + 100 * 17 = 2718 + 6
  CHECK(contains(said_by([] { rng_seeds(0, {.tp_size = 7, .stages = 18}); }), "of stage 17"));
}

}  // namespace
}  // namespace shardproof::tests
