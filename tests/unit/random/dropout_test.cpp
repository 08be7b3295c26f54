// Dropout masks over tp and dp, in every precision.
#include "random/dropout.h"

#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSeed = 40;

at::Tensor keep_of(uint64_t seed, at::IntArrayRef shape, double p, int64_t skip = 0) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto floats = at::TensorOptions().dtype(at::kFloat);
  if (skip > 0) at::rand({skip}, generator, floats);
  return at::rand(shape, generator, floats).ge(p);
}

TEST_CASE("forward and backward keep the same elements, scaled", "[RN-2]") {
  RngTracker rng;
  rng.add(kDataParallelRng, kSeed);
  const at::Tensor x = random_tensor({3, 4, 50}, 1).requires_grad_();
  const at::Tensor grad = random_tensor({3, 4, 50}, 2);
  const at::Tensor y = dropout(x, 0.3, rng, "x");
  y.backward(grad);
  const at::Tensor keep = keep_of(kSeed, {3, 4, 50}, 0.3).to(at::kDouble) / 0.7;
  CHECK(difference(x.detach() * keep, y.detach()) == "");
  CHECK(difference(grad * keep, x.grad()) == "");
  const double share = keep.gt(0).to(at::kDouble).mean().item<double>();
  CHECK(share > 0.6);
  CHECK(share < 0.8);
}

TEST_CASE("the mask does not depend on precision or strides", "[RN-2]") {
  const at::Tensor x = random_tensor({4, 5, 6}, 1) + 3;
  const at::Tensor golden = keep_of(kSeed, {4, 5, 6}, 0.5);
  for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
    RngTracker rng;
    rng.add(kDataParallelRng, kSeed);
    const at::Tensor strided = x.permute({2, 1, 0}).contiguous().permute({2, 1, 0}).to(dtype);
    const at::Tensor y = dropout(strided, 0.5, rng, "x");
    CHECK(y.scalar_type() == dtype);
    CHECK(y.ne(0).equal(golden));
  }
}

TEST_CASE("no dropout draws nothing, full dropout gives zeros, and others are refused", "[RN-2]") {
  DrawLog log;
  RngTracker rng(&log);
  rng.add(kDataParallelRng, kSeed);
  const at::Tensor x = random_tensor({5}, 1);
  CHECK(dropout(x, 0, rng, "x").equal(x));
  CHECK(log.draws().empty());
  const at::Tensor infinite = at::full({4}, std::numeric_limits<double>::infinity());
  CHECK(dropout(infinite, 1, rng, "x").eq(0).all().item<bool>());
  for (const double p : {-0.1, 1.1, std::nan("")}) CHECK_THROWS_AS(dropout(x, p, rng, "x"), Error);
  CHECK_THROWS_AS(Dropout(2, "x"), Error);
}

TEST_CASE("a layer drops in training, before and after an evaluation", "[RN-2]") {
  RngTracker rng;
  rng.add(kDataParallelRng, kSeed);
  Dropout layer(0.5, "x");
  const at::Tensor x = at::ones({100}, at::kDouble);
  CHECK(layer.forward(x, rng).eq(0).any().item<bool>());
  layer.set_training(false);
  CHECK(layer.forward(x, rng).equal(x));
  CHECK(layer.forward(x, rng).equal(x));  // without a draw, as the next number shows
  layer.set_training(true);
  CHECK(layer.forward(x, rng).ne(0).equal(keep_of(kSeed, {100}, 0.5, 100)));
}

// Every rank's masks of a tensor that tp ranks hold equally, and of one that they hold in parts.
std::vector<NamedResults> masks(const Mesh& mesh) {
  return on_every_rank(mesh, [&](MeshComm& comm, int64_t) -> NamedResults {
    RngTracker rng;
    Communicator& tp = comm.along("tp");
    seed_streams(rng, kSeed, {.tp_rank = tp.rank(), .tp_size = tp.size()});
    const at::Tensor x = at::ones({64}, at::kDouble);
    const at::Tensor alike = region_dropout(x, 0.5, HeldOverTp::kAlike, rng, "alike");
    const at::Tensor parts = region_dropout(x, 0.5, HeldOverTp::kParts, rng, "parts");
    const at::Tensor again = region_dropout(x, 0.5, HeldOverTp::kAlike, rng, "alike");
    return {{"alike", alike}, {"parts", parts}, {"again", again}};
  });
}

TEST_CASE("over tp masks agree outside of the region and differ inside; over dp they agree",
          "[RN-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    const Mesh mesh = Mesh::training({.dp = 2, .tp = tp});
    const auto results = masks(mesh);
    for (int64_t a = 0; a < mesh.world_size(); ++a) {
      const NamedResults& own = results[static_cast<size_t>(a)];
      CHECK(own.at("alike").ne(0).equal(keep_of(kSeed, {64}, 0.5)));
      CHECK(own.at("again").ne(0).equal(keep_of(kSeed, {64}, 0.5, 64)));
      const auto seed = static_cast<uint64_t>(kSeed + 2718 + mesh.coordinate("tp", a));
      CHECK(own.at("parts").ne(0).equal(keep_of(seed, {64}, 0.5)));
      for (int64_t b = 0; b < a; ++b) {
        const bool same_tp = mesh.coordinate("tp", a) == mesh.coordinate("tp", b);
        CHECK(own.at("parts").equal(results[static_cast<size_t>(b)].at("parts")) == same_tp);
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
