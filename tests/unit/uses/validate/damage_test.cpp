#include "sim/uses/validate/damage.h"

#include <catch2/catch.hpp>
#include <functional>

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::validate;

namespace {

constexpr int64_t kCount = 200;

std::vector<int64_t> every(int64_t stride, int64_t first, int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t at = first; at < count; at += stride) positions.push_back(at);
  return positions;
}

// Elements of `sender` at these positions, of which `received` arrived.
std::vector<WrongElement> arrived(const CodeKey& key, int64_t sender,
                                  const std::vector<int64_t>& positions,
                                  const std::function<int64_t(int64_t)>& received) {
  std::vector<WrongElement> wrong;
  for (const int64_t at : positions) {
    wrong.push_back({at, moved_code(key, sender, at), static_cast<double>(received(at))});
  }
  return wrong;
}

const std::vector<int64_t> kRanks = {2, 3, 5, 7};

// What all ranks get of a reduction in which `change` altered the addends of one position; those
// where nothing changed are left out.
std::vector<WrongElement> reduced(
    const CodeKey& key, ReduceOp op,
    const std::function<void(std::vector<int64_t>&, int64_t position)>& change) {
  std::vector<WrongElement> wrong;
  for (int64_t at = 0; at < kCount; ++at) {
    std::vector<int64_t> addends;
    for (size_t member = 0; member < kRanks.size(); ++member) {
      addends.push_back(addend_code(key, op, static_cast<int64_t>(member), 4, kRanks[member], at));
    }
    const int64_t right = reduced_code(key.type, op, addends, 4);
    change(addends, at);
    const int64_t received = reduced_code(key.type, op, addends, 4);
    if (received != right) wrong.push_back({at, right, static_cast<double>(received)});
  }
  return wrong;
}

}  // namespace

TEST_CASE("patterns of wrong elements are told apart", "[validate]") {
  CHECK(pattern_of({7}, 100, 4).shape == Shape::kElement);
  CHECK(pattern_of({8, 9, 10, 11, 12, 13, 14, 15}, 100, 4).shape == Shape::kSector);
  CHECK(pattern_of({9, 10, 11, 12, 13, 14, 15, 16}, 100, 4).shape == Shape::kRun);
  CHECK(pattern_of({96, 97, 98, 99}, 100, 4).shape == Shape::kSector);  // the last one is short
  CHECK(pattern_of(every(1, 0, 100), 100, 4).shape == Shape::kAll);
  CHECK(pattern_of({1, 2, 40, 41}, 100, 4).shape == Shape::kScattered);
  const WrongPattern lane = pattern_of(every(32, 5, 1000), 1000, 4);
  CHECK(lane.shape == Shape::kLane);
  CHECK(lane.stride == 32);
  CHECK(lane.text() == "every 32nd element from 5 (lane 5 of 32)");
}

TEST_CASE("a lane with an element that by chance is right is still a lane", "[validate]") {
  std::vector<int64_t> positions = every(8, 3, 200);
  positions.erase(positions.begin() + 4);
  CHECK(pattern_of(positions, 200, 2).shape == Shape::kLane);
  CHECK(pattern_of({3, 11, 19}, 200, 2).shape == Shape::kScattered);
}

TEST_CASE("the damage of moved elements is named", "[validate]") {
  for (const ElementType type : {ElementType::kFloat64, ElementType::kFloat32, ElementType::kInt32,
                                 ElementType::kBFloat16, ElementType::kInt8}) {
    const CodeKey key{.seed = 9, .round = 4, .type = type};
    const auto some = every(3, 20, 120);
    const auto source = [&](const std::function<int64_t(int64_t)>& received) {
      std::vector<WrongElement> wrong = arrived(key, 6, some, received);
      std::erase_if(wrong, [](const WrongElement& one) {
        return one.received == static_cast<double>(one.expected);
      });
      return source_of_moved(key, 6, kCount, 16, wrong);
    };
    CodeKey before = key;
    --before.round;
    INFO(name_of(type));
    CHECK(source([](int64_t) { return 0; }).damage == Damage::kLost);
    CHECK(source([&](int64_t at) { return 2 * moved_code(key, 6, at); }).damage ==
          Damage::kDoubled);
    CHECK(source([&](int64_t at) { return moved_code(before, 6, at); }).damage == Damage::kStale);
    const Source shifted = source([&](int64_t at) { return moved_code(key, 6, at + 7); });
    CHECK(shifted.damage == Damage::kMisplaced);
    CHECK(shifted.text == "rank 6's elements are those 7 places further on");
    const Source foreign = source([&](int64_t at) { return moved_code(key, 11, at); });
    CHECK(foreign.damage == Damage::kForeign);
    CHECK(foreign.text == "rank 11's elements came instead of rank 6's");
    CHECK(source([&](int64_t at) { return moved_code(key, 6, at) ^ 1; }).damage ==
          Damage::kAltered);
  }
}

TEST_CASE("one wrong element of few bits makes no claim", "[validate]") {
  const CodeKey key{.seed = 9, .round = 4, .type = ElementType::kInt8};
  const auto wrong = arrived(key, 6, {20}, [](int64_t) { return 0; });
  CHECK(source_of_moved(key, 6, kCount, 16, wrong).damage == Damage::kAltered);
}

TEST_CASE("the rank whose addend is lost, doubled, old or misplaced is named", "[validate]") {
  for (const ElementType type :
       {ElementType::kFloat64, ElementType::kFloat32, ElementType::kFloat16, ElementType::kInt64,
        ElementType::kInt32, ElementType::kUint8}) {
    for (size_t guilty = 0; guilty < kRanks.size(); ++guilty) {
      const CodeKey key{.seed = 3, .round = 2, .type = type};
      const auto name = [&](const auto& change) {
        const auto wrong = reduced(key, ReduceOp::kSum, change);
        REQUIRE(!wrong.empty());
        return source_of_reduced(key, ReduceOp::kSum, kRanks, kCount, wrong);
      };
      CodeKey before = key;
      --before.round;
      const std::vector<int64_t> rank = {kRanks[guilty]};
      const auto addend = [&](const CodeKey& codes, int64_t at) {
        return addend_code(codes, ReduceOp::kSum, static_cast<int64_t>(guilty), 4, rank[0], at);
      };
      INFO(name_of(type) << " rank " << rank[0]);
      const Source lost = name([&](auto& all, int64_t) { all[guilty] = 0; });
      CHECK(lost.damage == Damage::kLost);
      CHECK(lost.ranks == rank);
      const Source doubled = name([&](auto& all, int64_t) { all[guilty] *= 2; });
      CHECK(doubled.damage == Damage::kDoubled);
      CHECK(doubled.ranks == rank);
      const Source stale = name([&](auto& all, int64_t at) { all[guilty] = addend(before, at); });
      CHECK(stale.damage == Damage::kStale);
      CHECK(stale.ranks == rank);
      const Source shifted = name([&](auto& all, int64_t at) {
        if (at < kCount - 5) all[guilty] = addend(key, at + 5);
      });
      CHECK(shifted.damage == Damage::kMisplaced);
      CHECK(shifted.ranks == rank);
    }
  }
}

TEST_CASE("lost addends are named in every reduction that shows them", "[validate]") {
  for (const std::string& op_name : all_names<ReduceOp>()) {
    const auto op = enum_of<ReduceOp>(op_name);
    const CodeKey key{.seed = 3, .round = 2, .type = ElementType::kFloat32};
    const auto wrong = reduced(key, op, [&](auto& all, int64_t) { all.erase(all.begin() + 2); });
    const Source source = source_of_reduced(key, op, kRanks, kCount, wrong);
    INFO(op_name);
    CHECK(source.damage == Damage::kLost);
    CHECK(source.ranks == std::vector<int64_t>{5});
  }
}

TEST_CASE("an altered sum accuses nobody", "[validate]") {
  const CodeKey key{.seed = 3, .round = 2, .type = ElementType::kFloat32};
  const auto wrong = reduced(key, ReduceOp::kSum, [&](auto& all, int64_t at) {
    if (at % 8 == 3) all[1] ^= 1 << 12;
  });
  const Source source = source_of_reduced(key, ReduceOp::kSum, kRanks, kCount, wrong);
  CHECK(source.damage == Damage::kAltered);
  CHECK(source.ranks.empty());
}

TEST_CASE("a flipped bit of a moved integer is named", "[validate]") {
  const CodeKey key{.seed = 3, .round = 2, .type = ElementType::kInt32};
  const auto wrong =
      arrived(key, 1, {4, 12, 20}, [&](int64_t at) { return moved_code(key, 1, at) ^ (1 << 9); });
  CHECK(source_of_moved(key, 1, kCount, 8, wrong).text.ends_with("bit 9 of the integer flipped"));
}
