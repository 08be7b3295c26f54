// A batch from the first rank of a group: any shapes, and each refusal on every rank.
#include "parallel/tp/broadcast_data.h"

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/rank_results.h"

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
          {"scalar", at::scalar_tensor(7 + rank, at::kLong)},
          {"deep", ids.view({1, 3, 1, 2, 1, 2})},
          {"extra", at::ones({5}, at::kDouble)}};
}

TEST_CASE("every rank of a group has its first rank's tensors", "[TP-6]") {
  const Keys keys = {"scalar", "none", "strided", "ids", "deep"};
  for (const int64_t tp : {1, 2, 3, 4}) {
    const Mesh mesh = Mesh::training({.dp = 2, .tp = tp});  // the second group begins at rank tp
    const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
      Communicator& group = comm.along("tp");
      const Batch own = group.rank() == 0 ? batch_of(rank) : Batch{};
      return broadcast_data(keys, own, at::kLong, at::kCPU, group);
    });
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      const Batch golden = batch_of(rank / tp * tp);
      const NamedResults& own = results[static_cast<size_t>(rank)];
      CHECK(own.size() == keys.size());
      for (const std::string& key : keys) {
        CHECK(own.at(key).sizes() == golden.at(key).sizes());
        CHECK(own.at(key).equal(golden.at(key)));
        CHECK(own.at(key).is_contiguous());
      }
    }
  }
}

TEST_CASE("groups of different layout in one process: sizes and data go over the one given",
          "[TP-6]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  const auto results = on_every_rank(mesh, [&](MeshComm& comm, int64_t rank) -> NamedResults {
    NamedResults out;
    for (const char* axis : {"tp", "dp"}) {
      // Shapes differ between groups, so sizes of another group's batch would not fit.
      Communicator& group = comm.along(axis);
      const int64_t first = group.ranks().front();
      Batch own;
      if (group.rank() == 0) own["x"] = at::arange(6 + first, at::kLong) + 10 * rank;
      out[axis] = broadcast_data({"x"}, own, at::kLong, at::kCPU, group).at("x");
    }
    return out;
  });
  for (int64_t rank = 0; rank < 6; ++rank) {
    for (const char* axis : {"tp", "dp"}) {
      const int64_t first = mesh.peers_along(axis, rank).front();
      CHECK(results[static_cast<size_t>(rank)].at(axis).equal(at::arange(6 + first, at::kLong) +
                                                              10 * first));
    }
  }
}

TEST_CASE("floats and nothing at all go too", "[TP-6]") {
  const auto results =
      on_every_rank(Mesh::training({.tp = 3}), [](MeshComm& comm, int64_t rank) -> NamedResults {
        Communicator& tp = comm.along("tp");
        Batch own;
        if (rank == 0) own["x"] = random_tensor({3, 4}, 1).to(at::kBFloat16);
        NamedResults out = broadcast_data({"x"}, own, at::kBFloat16, at::kCPU, tp);
        if (!broadcast_data({}, own, at::kLong, at::kCPU, tp).empty()) out.clear();
        return out;
      });
  for (const NamedResults& own : results) {
    CHECK(own.at("x").equal(random_tensor({3, 4}, 1).to(at::kBFloat16)));
  }
}

// The error of each of four ranks; "" without one.
std::vector<std::string> refusals(const std::function<Keys(int64_t rank)>& keys,
                                  const std::function<at::ScalarType(int64_t rank)>& dtype) {
  std::vector<std::string> said(4);
  on_every_rank(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
    try {
      broadcast_data(keys(rank), rank == 0 ? batch_of(0) : Batch{}, dtype(rank), at::kCPU,
                     comm.along("tp"));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kBadInput) said[static_cast<size_t>(rank)] = error.what();
    }
    return {};
  });
  return said;
}

void check_all_say(const std::vector<std::string>& said, const Keys& parts) {
  for (const std::string& text : said) {
    CHECK(text == said[0]);
    for (const std::string& part : parts) {
      INFO(text);
      CHECK(text.find(part) != std::string::npos);
    }
  }
}

TEST_CASE("what is wrong is said in one sentence on every rank, and nobody waits", "[TP-6]") {
  const auto longs = [](int64_t) { return at::kLong; };
  const auto all = [](const Keys& keys) { return [keys](int64_t) { return keys; }; };
  check_all_say(refusals(all({"ids", "lacking"}), longs), {"has no 'lacking'"});
  check_all_say(refusals(all({"ids", "extra"}), longs), {"'extra'", "Double", "Long"});
  check_all_say(refusals(all({"ids", "none", "ids"}), longs), {"'ids'", "twice"});
  const auto others = [](int64_t rank) { return rank == 2 ? Keys{"none"} : Keys{"ids"}; };
  check_all_say(refusals(others, longs), {"different keys"});
  const auto swapped = [](int64_t rank) {
    return rank == 3 ? Keys{"ids", "none"} : Keys{"none", "ids"};
  };
  check_all_say(refusals(swapped, longs), {"different keys"});
  const auto types = [](int64_t rank) { return rank == 1 ? at::kInt : at::kLong; };
  check_all_say(refusals(all({"ids"}), types), {"different keys or dtypes"});
}

}  // namespace
}  // namespace shardproof::tests
