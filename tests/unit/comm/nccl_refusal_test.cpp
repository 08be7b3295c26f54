// Without a GPU or the plugin, NCCL and CUDA are refused with one sentence.
#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "comm/cuda_device.h"
#include "comm/nccl_backend.h"

namespace shardproof {
namespace {

using Catch::Matchers::Contains;

auto refused_because(const std::string& why) {
  return Catch::Predicate<Error>([why](const Error& error) {
    return error.kind() == ErrorKind::kRefused && error.fact() == why && !error.fix().empty();
  });
}

TEST_CASE("CUDA is there, or refused with one sentence that says why", "[comm][cuda]") {
  const std::string why = why_no_cuda();
  if (why.empty()) {
    CHECK_NOTHROW(load_cuda());
    return;
  }
  CHECK_THAT(why,
             Contains("no GPU here") || Contains("without CUDA") || Contains("cannot be loaded"));
  CHECK(why.find('\n') == std::string::npos);
  CHECK_THROWS_MATCHES(load_cuda(), Error, refused_because(why));
}

TEST_CASE("NCCL without GPU or plugin is refused before anything is tried", "[comm][cuda]") {
  const NcclSettings nowhere{.plugin = "/nonexistent/libshardproof_nccl.so"};
  const std::string why = why_no_nccl(nowhere);
  CHECK_THAT(why, Contains("no GPU here") || Contains("was not built") ||
                      Contains("without CUDA") || Contains("cannot be loaded"));
  CHECK_THROWS_MATCHES(nccl_factory(make_hash_store(), 0, nowhere), Error, refused_because(why));
}

}  // namespace
}  // namespace shardproof
