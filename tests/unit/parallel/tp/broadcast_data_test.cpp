// A batch from the first rank of a group: any shapes, and each refusal on every rank.
#include "parallel/tp/broadcast_data.h"

#include <catch2/catch.hpp>

#include "tests/support/rank_results.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {
namespace {

using Keys = std::vector<std::string>;
using Batch = std::map<std::string, at::Tensor>;

// A batch that differs between ranks: every rank must get that of its group's first.
Batch batch_of(int64_t rank) {
  const at::Tensor ids = at::arange(12, at::kLong) + 100 * rank;
  return {{"ids", ids.view({3, 4})},
          {"strided", ids.view({3, 4}).t()},
          {"none", at::zeros({2, 0, 3}, at::kLong)},
          {"deep", ids.view({1, 3, 1, 2, 1, 2})},
          {"extra", at::ones({5}, at::kDouble)}};
}

TEST_CASE("every rank of a group has its first rank's tensors", "[TP-6]") {
  const Keys keys = {"none", "strided", "ids", "deep"};
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});  // the second group begins at rank 3
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    Communicator& group = comm.along("tp");
    const Batch own = group.rank() == 0 ? batch_of(rank) : Batch{};
    NamedResults out = broadcast_data(keys, own, at::kLong, at::kCPU, group);
    const bool nothing = broadcast_data({}, own, at::kLong, at::kCPU, group).empty();
    out["nothing of nothing"] = at::full({}, nothing);
    return out;
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const Batch golden = batch_of(rank / 3 * 3);
    const NamedResults& own = results[static_cast<size_t>(rank)];
    CHECK(own.size() == keys.size() + 1);
    CHECK(own.at("nothing of nothing").item<bool>());
    for (const std::string& key : keys) {
      CHECK(own.at(key).sizes() == golden.at(key).sizes());
      CHECK(own.at(key).equal(golden.at(key)));
      CHECK(own.at(key).is_contiguous());
    }
  }
}

// Four ranks ask; each of them must say the same, with all of `parts`.
void check_all_say(const std::function<Keys(int64_t rank)>& keys,
                   const std::function<at::ScalarType(int64_t rank)>& dtype, const Keys& parts) {
  std::vector<std::string> said(4);
  run_emulated_ranks(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) {
    const Batch own = rank == 0 ? batch_of(0) : Batch{};
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
