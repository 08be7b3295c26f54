// Equal parts, and the refusal of sizes that do not divide.
#include "collective/equal_parts.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "collective/all_to_all.h"
#include "collective/mappings.h"
#include "tests/support/rank_results.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

TEST_CASE("a size is divided, or refused with both numbers", "[collective][SH-5]") {
  CHECK(divide(12, 4, "output_size") == 3);
  CHECK(divide(0, 4, "output_size") == 0);
  const std::string said = said_by([] { divide(10, 4, "output_size"); });
  CHECK(said.rfind("refused: ", 0) == 0);
  CHECK(said.find("output_size 10 does not divide by the 4 ranks of tp") != std::string::npos);
  CHECK(said.find("pad it to 12") != std::string::npos);
}

TEST_CASE("mappings without sizes refuse a dim that does not divide, with both numbers",
          "[collective][SH-5]") {
  std::vector<std::string> said;
  run_emulated_ranks(Mesh({{"tp", 3}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor x = random_tensor({7, 8}, 1);
    const std::vector<std::string> here = {
        said_by([&] { slice_with_all_gather_backward(x, tp, 0, "x"); }),
        said_by([&] { reduce_scatter_with_all_gather_backward(x, tp, 1, "x"); }),
        said_by([&] { sequence_to_hidden(x, tp, "x"); }),
        said_by([&] { hidden_to_sequence(x, tp, "x"); }),
        said_by([&] { all_to_all_with_all_to_all_backward(x, tp, "x"); })};
    if (rank == 0) said = here;
  });
  const std::vector<std::string> sizes = {"7", "8", "8", "7", "7"};
  REQUIRE(said.size() == sizes.size());
  for (size_t i = 0; i < said.size(); ++i) {
    CHECK_THAT(said[i],
               Catch::StartsWith("refused: ") && Catch::Contains(sizes[i]) && Catch::Contains("3"));
  }
}

TEST_CASE("parts that do not come to the tensor are named", "[collective][SH-5]") {
  std::string said;
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    const std::string here = said_by([&] {
      slice_with_all_gather_backward(at::ones({7, 2}), comm.along("tp"), 0, "x", {3, 3});
    });
    if (rank == 0) said = here;
  });
  CHECK_THAT(said, Catch::Contains("parts [3,3] come to 6, but dim 0 has size 7"));
}

}  // namespace
}  // namespace shardproof::tests
