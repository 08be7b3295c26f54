// A batch from the first rank of a group: each refusal on every rank. The values and shapes are
// those of scenarios/layers/broadcast_data.yaml and broadcast_along_dp.yaml.
#include "parallel/tp/broadcast_data.h"

#include <catch2/catch.hpp>

#include "tests/support/rank_results.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

using Keys = std::vector<std::string>;
using Batch = std::map<std::string, at::Tensor>;

Batch batch_of_first() {
  return {{"ids", at::arange(12, at::kLong).view({3, 4})},
          {"none", at::zeros({2, 0, 3}, at::kLong)},
          {"extra", at::ones({5}, at::kDouble)}};
}

// Four ranks ask; each of them must say the same, with all of `parts`.
void check_all_say(const std::function<Keys(int64_t rank)>& keys,
                   const std::function<at::ScalarType(int64_t rank)>& dtype, const Keys& parts) {
  std::vector<std::string> said(4);
  run_emulated_ranks(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) {
    const Batch own = rank == 0 ? batch_of_first() : Batch{};
    said[static_cast<size_t>(rank)] =
        said_by([&] { broadcast_data(keys(rank), own, dtype(rank), at::kCPU, comm.along("tp")); });
  });
  for (const std::string& text : said) {
    CHECK(text == said[0]);
    CHECK_THAT(text, Catch::StartsWith("bad input: "));
    for (const std::string& part : parts) CHECK_THAT(text, Catch::Contains(part));
  }
}

TEST_CASE("what is wrong is said in one sentence on every rank, and nobody waits", "[TP-6]") {
  const auto longs = [](int64_t) { return at::kLong; };
  const auto all = [](const Keys& keys) { return [keys](int64_t) { return keys; }; };
  check_all_say(all({"ids", "lacking"}), longs, {"has no 'lacking'"});
  check_all_say(all({"ids", "extra"}), longs, {"'extra'", "Double", "Long"});
  check_all_say(all({"ids", "none", "ids"}), longs, {"'ids'", "twice"});
  const auto others = [](int64_t rank) { return rank == 2 ? Keys{"none"} : Keys{"ids"}; };
  check_all_say(others, longs, {"different keys"});
  const auto swapped = [](int64_t rank) {
    return rank == 3 ? Keys{"ids", "none"} : Keys{"none", "ids"};
  };
  check_all_say(swapped, longs, {"different keys"});
  const auto types = [](int64_t rank) { return rank == 1 ? at::kInt : at::kLong; };
  check_all_say(all({"ids"}), types, {"different keys or dtypes"});
}

}  // namespace
}  // namespace shardproof::tests
