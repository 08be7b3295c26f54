#include "sim/world/rank/emulated_world_main.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

namespace shardproof::sim::world {
namespace {

// Threads that start read the environment: setenv beside them moves it away while they read.
TEST_CASE("the environment of an emulated world stands before its rank threads start") {
  ::unsetenv("MKL_DISABLE_FAST_MM");
  const EmulatedWorldMain few(8, DeviceKind::kCpu, {});
  CHECK(std::getenv("MKL_DISABLE_FAST_MM") == nullptr);
  const EmulatedWorldMain many(9, DeviceKind::kCpu, {});
  REQUIRE(std::getenv("MKL_DISABLE_FAST_MM") != nullptr);
  CHECK(std::getenv("MKL_DISABLE_FAST_MM") == std::string("1"));
}

}  // namespace
}  // namespace shardproof::sim::world
