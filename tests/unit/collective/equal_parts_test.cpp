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

TEST_CASE("vocabulary ranges from the whole and from a part's size", "[collective][SH-5]") {
  CHECK(vocab_range_of_whole(12, 2, 3) == IndexRange{8, 12});
  for (int64_t rank = 0; rank < 4; ++rank) {
    CHECK(vocab_range_of_whole(20, rank, 4) == vocab_range_of_part(5, rank));
  }
  const std::string said = said_by([] { vocab_range_of_whole(13, 0, 4); });
  CHECK(said.rfind("refused: ", 0) == 0);
  CHECK(said.find("vocab_size 13 does not divide by the 4 ranks") != std::string::npos);
}

TEST_CASE("flat chunks of a strided tensor come together again; a rest is refused, not dropped",
          "[collective][SH-5]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    const Mesh mesh({{"dp", 2}, {"tp", tp}});
    const at::Tensor x = random_tensor({4, 6}, 1).t();
    std::vector<std::string> said(static_cast<size_t>(mesh.world_size()));
    const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
      Communicator& axis = comm.along("tp");
      said[static_cast<size_t>(rank)] = said_by([&] { flat_chunk(at::ones({5, 5}), axis); });
      return {{"view", flat_chunk(x, axis)},
              {"again", gather_flat_chunks(flat_chunk(x, axis), axis, "chunks")}};
    });
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const auto& result = results[static_cast<size_t>(rank)];
      const int64_t length = 24 / tp;
      const at::Tensor part = x.reshape({-1}).narrow(0, rank % tp * length, length);
      CHECK(result.at("view").equal(part));
      CHECK(result.at("again").equal(x.reshape({-1})));
      CHECK(contains(said[static_cast<size_t>(rank)], "refused: ") == (tp > 1));  // 25 elements
    }
  }
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
