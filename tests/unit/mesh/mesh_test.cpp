#include "mesh/mesh.h"

#include <catch2/catch.hpp>

#include "tests/support/said_by.h"

using shardproof::Error;
using shardproof::ErrorKind;
using shardproof::Mesh;

namespace {

using Group = std::vector<int64_t>;

// Every training mesh of at most 48 ranks whose axes have 1 to 4 ranks.
std::vector<Mesh> meshes_of_48() {
  std::vector<Mesh> meshes;
  for (int64_t dp = 1; dp <= 4; ++dp)
    for (int64_t cp = 1; cp <= 4; ++cp)
      for (int64_t ulysses = 1; ulysses <= 4; ++ulysses)
        for (int64_t tp = 1; tp <= 4; ++tp)
          if (dp * cp * ulysses * tp <= 48)
            meshes.push_back(Mesh::training({.dp = dp, .cp = cp, .ulysses = ulysses, .tp = tp}));
  return meshes;
}

std::string parse_refusal(const std::string& text) {
  return shardproof::tests::told_by(ErrorKind::kBadInput, [&] { Mesh::parse(text); });
}

TEST_CASE("a part is a stride and a size over the ranks", "[mesh]") {
  const Mesh mesh({{"pp", 2}, {"dp", 2}, {"cp", 2}, {"tp", 2}}, {{"ep", 2, 4}, {"etp", 1, 1}});
  CHECK(mesh.world_size() == 16);
  CHECK(mesh.size("ep") == 4);
  CHECK(mesh.coordinate("ep", 5) == 2);
  CHECK(mesh.coordinate("ep", 13) == 2);  // the same on the other stage
  CHECK(mesh.peers_along("ep", 13) == std::vector<int64_t>{9, 11, 13, 15});
  CHECK(mesh.peers_along("ep%2", 13) == std::vector<int64_t>{13, 15});
  CHECK(mesh.peers_along("ep//2", 13) == std::vector<int64_t>{9, 13});
  CHECK(mesh.peers_along(std::vector<std::string>{"ep", "dp"}, 0) ==
        std::vector<int64_t>{0, 2, 4, 6});
  CHECK(mesh.peers_along("etp+tp", 0) == std::vector<int64_t>{0, 1});  // one name ends as another
  CHECK(mesh.names() == std::vector<std::string>{"pp", "dp", "cp", "tp", "ep"});
  CHECK_THROWS_WITH(Mesh({{"dp", 6}}, {{"ep", 1, 4}}),
                    Catch::Contains("4 ranks, 1 apart, does not divide 6 ranks"));
}

}  // namespace

TEST_CASE("peers_along returns the ranks that differ on that axis only", "[mesh]") {
  const Mesh mesh({{"dp", 2}, {"cp", 3}, {"tp", 2}});  // unequal sizes: a swapped axis must fail
  CHECK(mesh.peers_along("cp", 7) == Group{7, 9, 11});
  CHECK(mesh.peers_along("dp", 7) == Group{1, 7});
  CHECK(mesh.peers_along("tp", 7) == Group{6, 7});
  CHECK(mesh.peers_along("ulysses", 7) == Group{7});
  CHECK(mesh.peers_along(std::vector<std::string>{"tp", "dp"}, 3) == Group{2, 3, 8, 9});
  CHECK(mesh.peers_along({"dp", "cp", "tp"}, 3).size() == 12);
  CHECK(mesh.peers_along(std::vector<std::string>{}, 3) == Group{3});
}

TEST_CASE("ranks are numbered with the innermost axis fastest", "[mesh]") {
  const Mesh mesh({{"dp", 2}, {"cp", 3}, {"tp", 4}});
  CHECK(mesh.world_size() == 24);
  CHECK(mesh.coordinate("dp", 14) == 1);
  CHECK(mesh.coordinate("cp", 14) == 0);
  CHECK(mesh.coordinate("tp", 14) == 2);
  CHECK(mesh.coordinate("ulysses", 14) == 0);
  CHECK(mesh.size("cp") == 3);
  CHECK(mesh.size("ulysses") == 1);
  CHECK_THROWS(mesh.coordinate("tp", 24));
}

TEST_CASE("on every small mesh coordinates and ranks are inverse and groups cover the world",
          "[mesh]") {
  for (const Mesh& mesh : meshes_of_48()) {
    for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
      int64_t counted = 0;
      for (const auto& axis : mesh.axes()) {
        counted = counted * axis.size + mesh.coordinate(axis.name, rank);
      }
      REQUIRE(counted == rank);
      for (const auto& axis : mesh.axes()) {
        const Group peers = mesh.peers_along(axis.name, rank);
        REQUIRE(static_cast<int64_t>(peers.size()) == axis.size);
        REQUIRE(peers[mesh.coordinate(axis.name, rank)] == rank);
        for (const int64_t peer : peers)
          for (const auto& other : mesh.axes())
            if (other.name != axis.name)
              REQUIRE(mesh.coordinate(other.name, peer) == mesh.coordinate(other.name, rank));
      }
    }
  }
}

TEST_CASE("a rank is alone on a missing axis", "[mesh]") {
  CHECK(Mesh({{"tp", 3}}).peers_along("dp", 2) == Group{2});
  CHECK(Mesh().world_size() == 1);
  CHECK(Mesh().peers_along("tp", 0) == Group{0});
}

TEST_CASE("a mesh reads as it is written, in any order", "[mesh]") {
  CHECK(Mesh::parse("tp=2,dp=3") == Mesh::training({.dp = 3, .tp = 2}));
  CHECK(Mesh::parse(" cp = 2 , ulysses=4 ") == Mesh::training({.cp = 2, .ulysses = 4}));
  CHECK_FALSE(Mesh::parse("tp=2") == Mesh::parse("dp=2"));
  CHECK(Mesh::parse("tp=3,dp=2").describe() == "dp=2 tp=3");
  CHECK(Mesh::parse("tp=1").describe() == "one rank");
  CHECK(Mesh::parse("dp=256,tp=256").world_size() == 65536);
}

TEST_CASE("the parts for experts are another view of a stage's ranks", "[mesh][EP-1]") {
  const Mesh mesh = Mesh::parse("pp=2,dp=3,tp=4,ep=2,etp=3");
  CHECK(mesh == Mesh::training({.pp = 2, .dp = 3, .tp = 4, .ep = 2, .etp = 3}));
  CHECK(mesh.world_size() == 24);
  CHECK(mesh.describe() == "pp=2 dp=3 tp=4, experts edp=2 ep=2 etp=3");
  for (int64_t rank = 0; rank < 24; ++rank) {
    const int64_t in_stage = rank % 12;
    CHECK(mesh.coordinate("etp", rank) == in_stage % 3);
    CHECK(mesh.coordinate("ep", rank) == in_stage / 3 % 2);
    CHECK(mesh.coordinate("edp", rank) == in_stage / 6);
  }
  CHECK(mesh.peers_along("ep", 16) == Group{13, 16});
  CHECK(mesh.peers_along("edp", 16) == Group{16, 22});
  CHECK(Mesh::training({.dp = 2}).parts().empty());
}

TEST_CASE("axes flattened into one, and its blocks, are axes themselves", "[mesh][fsdp]") {
  const Mesh mesh = Mesh::training({.dp = 4, .cp = 3, .tp = 2});  // dp, cp, tp
  CHECK(mesh.size("dp+cp") == 12);
  CHECK(mesh.size("dp+cp%6") == 6);
  CHECK(mesh.size("dp+cp//6") == 2);
  CHECK(mesh.size("cp%1") == 1);
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t flat = rank / 2;  // tp is the innermost
    CHECK(mesh.coordinate("dp+cp", rank) == flat);
    CHECK(mesh.coordinate("cp+dp", rank) == flat);  // axes are ordered outer to inner
    CHECK(mesh.coordinate("dp+cp%6", rank) == flat % 6);
    CHECK(mesh.coordinate("dp+cp//6", rank) == flat / 6);
    CHECK(mesh.coordinate("dp+tp", rank) == rank / 6 * 2 + rank % 2);
  }
  CHECK(mesh.peers_along("dp+cp", 3) ==
        std::vector<int64_t>{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23});
  CHECK(mesh.peers_along("dp+cp%6", 15) == std::vector<int64_t>{13, 15, 17, 19, 21, 23});
  CHECK(mesh.peers_along("dp+cp//6", 15) == std::vector<int64_t>{3, 15});
  CHECK(mesh.peers_along("dp%2", 12) == std::vector<int64_t>{12, 18});
  CHECK(mesh.peers_along("dp//2", 12) == std::vector<int64_t>{0, 12});
  CHECK_THROWS(mesh.size("dp+cp%5"));
}

TEST_CASE("a mesh that no model could run is refused with a sentence", "[mesh]") {
  using Catch::Matchers::Contains;
  CHECK_THAT(parse_refusal("pt=2"), Contains("unknown mesh axis 'pt'") && Contains("did you mean"));
  CHECK_THAT(parse_refusal("ulyses=2"), Contains("did you mean 'ulysses'"));
  CHECK_THAT(parse_refusal("pipeline=2"), Contains("the axes are pp, dp, cp, ulysses, tp"));
  CHECK_THAT(parse_refusal("tp=0"), Contains("tp=0 is below 1"));
  CHECK_THAT(parse_refusal("pp=2,dp=2,tp=3,ep=2,etp=2"),
             Contains("ep=2 times etp=2 does not divide the 6 ranks that hold a layer") &&
                 Contains("choose sizes whose product is 1, 2, 3, 6"));
  CHECK_THAT(parse_refusal("dp=2,ep=0"), Contains("ep=0 times etp=1"));
  CHECK_THAT(parse_refusal("dp=2,etp=4294967296,ep=4294967296"), Contains("does not divide"));
  CHECK_THAT(parse_refusal("tp=-3"), Contains("tp=-3 is below 1"));
  CHECK_THAT(parse_refusal("tp=2,tp=2"), Contains("named twice"));
  CHECK_THAT(parse_refusal("tp=two"), Contains("not a whole number"));
  CHECK_THAT(parse_refusal("tp=2.5"), Contains("not a whole number"));
  CHECK_THAT(parse_refusal("tp="), Contains("not a whole number"));
  CHECK_THAT(parse_refusal("tp"), Contains("not axis=size"));
  CHECK_THAT(parse_refusal(""), Contains("not axis=size"));
  CHECK_THAT(parse_refusal("tp=2,"), Contains("not axis=size"));
  CHECK_THAT(parse_refusal("tp=99999999999999999999"), Contains("larger than any world"));
  CHECK_THAT(parse_refusal("dp=65537"), Contains("more than 65536 ranks"));
  CHECK_THAT(parse_refusal("dp=4294967296,tp=4294967296"), Contains("more than 65536 ranks"));
  CHECK_THROWS_AS(Mesh({{"tp", 2}, {"tp", 3}}), Error);
  CHECK_THROWS_AS(Mesh::training({.tp = 0}), Error);
}
