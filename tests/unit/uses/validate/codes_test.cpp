#include "sim/uses/validate/codes.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "sim/uses/validate/groups.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

int exact_bits_of(ElementType type) {  // as IEEE and two's complement have them
  constexpr std::array<int, 9> kBits = {53, 24, 11, 8, 63, 31, 7, 8, 1};
  return kBits.at(static_cast<size_t>(type));
}

}  // namespace

TEST_CASE("the codes of two ranks, positions and rounds differ", "[validate]") {
  const CodeKey key{.seed = 5, .round = 3, .type = ElementType::kFloat64};
  std::set<int64_t> codes;
  for (int64_t rank = 0; rank < 64; ++rank) {
    for (int64_t position = 0; position < 500; ++position) {
      codes.insert(moved_code(key, rank, position));
    }
  }
  CHECK(codes.size() == 64 * 500);
  CodeKey later = key;
  ++later.round;
  CHECK(codes.count(moved_code(later, 0, 0)) == 0);
}

TEST_CASE("every partial sum of addends is exact in its dtype", "[validate]") {
  for (const std::string& name : all_names<ElementType>()) {
    const auto type = enum_of<ElementType>(name);
    for (const int64_t members : {2, 3, 8, 64, 512}) {
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        if (!can_reduce(type, op, members) || type == ElementType::kBool) continue;
        const CodeKey key{.seed = 1, .round = 1, .type = type};
        for (int64_t position = 0; position < 40; ++position) {
          int64_t sum = 0;
          for (int64_t member = 0; member < members; ++member) {
            const int64_t addend = addend_code(key, op, member, members, member, position);
            CHECK(addend >= 0);
            sum += addend;
          }
          INFO(name << " " << members << " " << name_of(op));
          CHECK(std::log2(static_cast<double>(sum)) <= exact_bits_of(type));
          if (op == ReduceOp::kAvg) CHECK(sum % members == 0);
        }
      }
    }
  }
}

TEST_CASE("leaving out or doubling any addend changes some results of each reduction",
          "[validate]") {
  constexpr int64_t kMembers = 5, kPositions = 40;
  for (const std::string& type_name : all_names<ElementType>()) {
    const auto type = enum_of<ElementType>(type_name);
    for (const std::string& op_name : all_names<ReduceOp>()) {
      const auto op = enum_of<ReduceOp>(op_name);
      if (!can_reduce(type, op, kMembers)) continue;
      const CodeKey key{.seed = 2, .round = 0, .type = type};
      for (int64_t lost = 0; lost < kMembers; ++lost) {
        int64_t changed = 0;
        for (int64_t position = 0; position < kPositions; ++position) {
          std::vector<int64_t> all;
          for (int64_t member = 0; member < kMembers; ++member) {
            all.push_back(addend_code(key, op, member, kMembers, member, position));
          }
          std::vector<int64_t> some = all;
          some.erase(some.begin() + lost);
          changed +=
              reduced_code(type, op, all, kMembers) != reduced_code(type, op, some, kMembers);
        }
        INFO(type_name << " " << op_name << " without member " << lost);
        CHECK(changed > 0);
      }
    }
  }
}

TEST_CASE("an average of integers is no reduction", "[validate]") {
  CHECK_FALSE(can_reduce(ElementType::kInt32, ReduceOp::kAvg, 4));
  CHECK_FALSE(can_reduce(ElementType::kBool, ReduceOp::kAvg, 4));
  CHECK(can_reduce(ElementType::kFloat32, ReduceOp::kAvg, 4));
}

TEST_CASE("in the rounds of pairs every two ranks meet once and no rank twice at a time",
          "[validate]") {
  for (const int64_t size : {2, 3, 4, 7, 8, 16}) {
    std::set<std::pair<int64_t, int64_t>> met;
    for (int64_t round = 0; round < pairing_rounds(size); ++round) {
      for (int64_t rank = 0; rank < size; ++rank) {
        const int64_t partner = partner_of(rank, size, round);
        if (partner < 0) continue;
        REQUIRE(partner != rank);
        REQUIRE(partner_of(partner, size, round) == rank);
        if (rank < partner) CHECK(met.insert({rank, partner}).second);
      }
    }
    CHECK(static_cast<int64_t>(met.size()) == size * (size - 1) / 2);
  }
}

TEST_CASE("groups are the world, the axes, hosts, rails and halves of the hosts", "[validate]") {
  const std::vector<int64_t> host_of = {0, 0, 1, 1, 2, 2, 3, 3};
  const auto groups = groups_of(5, host_of, {{"dp", 4}, {"tp", 2}});
  std::vector<std::string> names;
  for (const RankGroup& group : groups) names.push_back(group.name);
  CHECK(names == std::vector<std::string>{"world", "dp", "tp", "node", "rail", "half0", "half1"});
  CHECK(groups[1].ranks == std::vector<int64_t>{1, 3, 5, 7});
  CHECK(groups[2].ranks == std::vector<int64_t>{4, 5});
  CHECK(groups[3].ranks == std::vector<int64_t>{4, 5});
  CHECK(groups[4].ranks == std::vector<int64_t>{1, 3, 5, 7});
  CHECK(groups[5].ranks == std::vector<int64_t>{0, 1, 4, 5});
  CHECK(groups[6].ranks == std::vector<int64_t>{4, 5, 6, 7});
}

TEST_CASE("no two hosts of 64 are in the same halves", "[validate]") {
  std::vector<int64_t> host_of;
  for (int64_t rank = 0; rank < 128; ++rank) host_of.push_back(rank / 2);
  std::set<std::vector<std::vector<int64_t>>> seen;
  for (int64_t host = 0; host < 64; ++host) {
    std::vector<std::vector<int64_t>> halves;
    for (const RankGroup& group : groups_of(2 * host, host_of, {})) {
      if (group.name.starts_with("half")) halves.push_back(group.ranks);
    }
    CHECK(halves.size() == 6);
    CHECK(seen.insert(halves).second);
  }
}
