#include "sim/uses/validate/damage.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "base/count_of.h"
#include "base/error.h"

namespace shardproof::sim::validate {
namespace {

constexpr int64_t kSectorBytes = 32;
// A claim is made when chance would bear it out in less than one of 2^10 cases.
constexpr int kBitsOfDoubt = 10;

// Whether so many elements tell one of `claims` claims from chance. Never true if one is not
// an integer.
bool tells(const std::vector<WrongElement>& wrong, int bits, int64_t claims) {
  const bool are_codes = std::all_of(wrong.begin(), wrong.end(), [](const WrongElement& element) {
    return element.received == std::floor(element.received);
  });
  if (!are_codes) return false;
  const auto evidence = static_cast<double>(wrong.size()) * bits;
  return evidence >= kBitsOfDoubt + std::log2(static_cast<double>(claims));
}

std::string ordinal(int64_t number) {
  const int64_t tens = number % 100, ones = number % 10;
  const bool teen = tens >= 11 && tens <= 13;
  return fmt::format("{}{}", number,
                     teen        ? "th"
                     : ones == 1 ? "st"
                     : ones == 2 ? "nd"
                     : ones == 3 ? "rd"
                                 : "th");
}

// Every element has this value, at every position that is wrong.
using ValueAt = std::function<std::optional<int64_t>(int64_t position)>;

bool explains(const std::vector<WrongElement>& wrong, const ValueAt& value) {
  return std::all_of(wrong.begin(), wrong.end(), [&](const WrongElement& element) {
    const std::optional<int64_t> there = value(element.position);
    return there && static_cast<double>(*there) == element.received;
  });
}

// The distance at which each wrong element is another of the same row; 0: there is none.
int64_t shift_of(int64_t count, const std::vector<WrongElement>& wrong,
                 const std::function<std::optional<int64_t>(int64_t position, int64_t from)>& at) {
  const WrongElement& first = wrong.front();
  for (int64_t from = 0; from < count; ++from) {
    const int64_t shift = from - first.position;
    if (shift == 0) continue;
    const std::optional<int64_t> there = at(first.position, from);
    if (!there || static_cast<double>(*there) != first.received) continue;
    const auto moved = [&](int64_t position) -> std::optional<int64_t> {
      const int64_t other = position + shift;
      return other < 0 || other >= count ? std::nullopt : at(position, other);
    };
    if (explains(wrong, moved)) return shift;
  }
  return 0;
}

std::string shift_text(int64_t rank, int64_t shift) {
  return fmt::format("rank {}'s elements are those {} places {}", rank, std::abs(shift),
                     shift > 0 ? "further on" : "before");
}

// The bit that differs in all of them; -1: several do.
int flipped_bit(const std::vector<WrongElement>& wrong) {
  int bit = -1;
  for (const WrongElement& element : wrong) {
    if (!(std::abs(element.received) < 0x1p62) || element.received != std::floor(element.received))
      return -1;
    const auto changed = static_cast<uint64_t>(element.expected) ^
                         static_cast<uint64_t>(static_cast<int64_t>(element.received));
    if (changed == 0 || (changed & (changed - 1)) != 0) return -1;
    const int here = static_cast<int>(std::log2(static_cast<double>(changed)));
    if (bit >= 0 && here != bit) return -1;
    bit = here;
  }
  return bit;
}

std::string altered_text(const std::vector<WrongElement>& wrong) {
  const WrongElement& first = wrong.front();
  const int bit = flipped_bit(wrong);
  return fmt::format("element {}: {} became {:.17g}{}", first.position, first.expected,
                     first.received,
                     bit < 0 ? "" : fmt::format("; bit {} of the integer flipped", bit));
}

// The addends of a reduction at one position, and its result when one member's is another.
class Reduction {
 public:
  Reduction(const CodeKey& key, ReduceOp op, const std::vector<int64_t>& ranks)
      : key_(key), op_(op), ranks_(ranks) {}

  int64_t addend(const CodeKey& key, int64_t member, int64_t position) const {
    return addend_code(key, op_, member, size(), ranks_[static_cast<size_t>(member)], position);
  }
  int64_t with(int64_t member, int64_t value, int64_t position) const {
    const Column& column = at(position);
    if (sums()) return of_total(column.total - own(column, member) + value);
    std::vector<int64_t> all = column.addends;
    all[static_cast<size_t>(member)] = value;
    return result(all);
  }
  int64_t without(int64_t member, int64_t position) const {
    const Column& column = at(position);
    if (sums()) return of_total(column.total - own(column, member));
    std::vector<int64_t> all = column.addends;
    all.erase(all.begin() + static_cast<std::ptrdiff_t>(member));
    return result(all);
  }
  int64_t twice(int64_t member, int64_t position) const {
    const Column& column = at(position);
    if (sums()) return of_total(column.total + own(column, member));
    std::vector<int64_t> all = column.addends;
    all.push_back(own(column, member));
    return result(all);
  }
  CodeKey before() const {
    CodeKey earlier = key_;
    --earlier.round;
    return earlier;
  }
  int64_t size() const { return static_cast<int64_t>(ranks_.size()); }
  bool sums() const {
    return key_.type != ElementType::kBool && (op_ == ReduceOp::kSum || op_ == ReduceOp::kAvg);
  }

 private:
  struct Column {
    std::vector<int64_t> addends;
    int64_t total = 0;
  };

  // Every member is tried at every place: the addends of a position are computed once.
  const Column& at(int64_t position) const {
    const auto [found, is_new] = columns_.try_emplace(position);
    if (!is_new) return found->second;
    for (int64_t member = 0; member < size(); ++member) {
      found->second.addends.push_back(addend(key_, member, position));
      found->second.total += found->second.addends.back();
    }
    return found->second;
  }
  static int64_t own(const Column& column, int64_t member) {
    return column.addends[static_cast<size_t>(member)];
  }
  int64_t of_total(int64_t total) const { return op_ == ReduceOp::kAvg ? total / size() : total; }
  int64_t result(const std::vector<int64_t>& addends) const {
    return reduced_code(key_.type, op_, addends, size());
  }

  const CodeKey& key_;
  ReduceOp op_;
  const std::vector<int64_t>& ranks_;
  mutable std::unordered_map<int64_t, Column> columns_;
};

Source named(Damage damage, std::vector<int64_t> ranks, const std::string& what) {
  const std::string whose = ranks.size() == 1
                                ? fmt::format("rank {}'s", ranks[0])
                                : fmt::format("one of ranks {}'s", fmt::join(ranks, ", "));
  return {.damage = damage, .ranks = std::move(ranks), .text = whose + " " + what};
}

}  // namespace

std::string WrongPattern::text() const {
  switch (shape) {
    case Shape::kElement:
      return fmt::format("element {} of {}", first, count);
    case Shape::kSector:
      return fmt::format("the 32-byte sector of elements {} to {} of {}", first, first + wrong - 1,
                         count);
    case Shape::kLane:
      return fmt::format("every {} element from {} (lane {} of {})", ordinal(stride), first,
                         first % stride, stride);
    case Shape::kRun:
      return fmt::format("elements {} to {} of {}", first, first + wrong - 1, count);
    case Shape::kAll:
      return fmt::format("all {}", count_of(count, "element"));
    case Shape::kScattered:
      return fmt::format("{} of {}, the first is {}", wrong, count_of(count, "element"), first);
  }
  return "";
}

WrongPattern pattern_of(const std::vector<int64_t>& positions, int64_t count,
                        int64_t element_bytes) {
  SHARDPROOF_ASSERT(!positions.empty(), "positions of a pattern");
  const auto wrong = static_cast<int64_t>(positions.size());
  WrongPattern pattern{
      .first = positions.front(), .wrong = wrong, .count = count, .bytes = element_bytes};
  const int64_t extent = positions.back() - positions.front() + 1;
  const int64_t sector = kSectorBytes / element_bytes;
  int64_t stride = 0;
  for (const int64_t position : positions) stride = std::gcd(stride, position - pattern.first);
  if (wrong == count && count > 1) {
    pattern.shape = Shape::kAll;
  } else if (wrong == 1) {
    pattern.shape = Shape::kElement;
  } else if (wrong == extent) {
    const bool whole = wrong == sector || positions.back() == count - 1;
    const bool aligned = pattern.first % sector == 0 && wrong <= sector;
    pattern.shape = whole && aligned ? Shape::kSector : Shape::kRun;
  } else if (stride > 1 && wrong >= 3) {
    const int64_t slots = (count - 1 - pattern.first) / stride + 1;
    // A changed element may by chance have its old value.
    if (pattern.first < stride && 4 * wrong >= 3 * slots) {
      pattern.shape = Shape::kLane;
      pattern.stride = stride;
    }
  }
  return pattern;
}

Source source_of_moved(const CodeKey& key, int64_t sender, int64_t count, int64_t world_size,
                       const std::vector<WrongElement>& wrong) {
  const auto of = [&](const CodeKey& codes, int64_t rank) {
    return [&codes, rank](int64_t position) -> std::optional<int64_t> {
      return moved_code(codes, rank, position);
    };
  };
  const auto zero = [](int64_t) -> std::optional<int64_t> { return 0; };
  CodeKey before = key;
  --before.round;
  if (!tells(wrong, code_bits(key.type), 3 + 2 * count + world_size)) {
    return {.damage = Damage::kAltered, .ranks = {sender}, .text = altered_text(wrong)};
  }
  if (explains(wrong, zero)) return named(Damage::kLost, {sender}, "elements were lost");
  if (key.round > 0 && explains(wrong, of(before, sender))) {
    return named(Damage::kStale, {sender}, "elements are those of the round before");
  }
  const auto doubled = [&](int64_t position) -> std::optional<int64_t> {
    return 2 * moved_code(key, sender, position);
  };
  if (explains(wrong, doubled)) return named(Damage::kDoubled, {sender}, "elements count twice");
  const int64_t shift = shift_of(count, wrong, [&](int64_t, int64_t from) {
    return std::optional<int64_t>(moved_code(key, sender, from));
  });
  if (shift != 0) {
    return {.damage = Damage::kMisplaced, .ranks = {sender}, .text = shift_text(sender, shift)};
  }
  for (int64_t rank = 0; rank < world_size; ++rank) {
    if (rank == sender || !explains(wrong, of(key, rank))) continue;
    return {.damage = Damage::kForeign,
            .ranks = {sender},
            .text = fmt::format("rank {}'s elements came instead of rank {}'s", rank, sender)};
  }
  return {.damage = Damage::kAltered, .ranks = {sender}, .text = altered_text(wrong)};
}

Source source_of_reduced(const CodeKey& key, ReduceOp op, const std::vector<int64_t>& ranks,
                         int64_t count, const std::vector<WrongElement>& wrong) {
  const Reduction reduction(key, op, ranks);
  const int bits = addend_bits(key.type, op, reduction.size());
  if (!tells(wrong, bits, 4 * reduction.size())) {
    return {.damage = Damage::kAltered, .ranks = {}, .text = altered_text(wrong)};
  }
  // The members for whom the result would be what was received.
  const auto those = [&](const std::function<int64_t(int64_t member, int64_t position)>& result) {
    std::vector<int64_t> found;
    for (int64_t member = 0; member < reduction.size(); ++member) {
      const auto value = [&](int64_t position) -> std::optional<int64_t> {
        return result(member, position);
      };
      if (explains(wrong, value)) found.push_back(ranks[static_cast<size_t>(member)]);
    }
    return found;
  };
  const auto zeroed = [&](int64_t member, int64_t position) {
    return reduction.with(member, 0, position);
  };
  const auto absent = [&](int64_t member, int64_t position) {
    return reduction.without(member, position);
  };
  const auto twice = [&](int64_t member, int64_t position) {
    return reduction.twice(member, position);
  };
  const CodeKey before = reduction.before();
  const auto stale = [&](int64_t member, int64_t position) {
    return reduction.with(member, reduction.addend(before, member, position), position);
  };
  if (auto found = those(zeroed); !found.empty()) {
    return named(Damage::kLost, std::move(found), "addends were lost");
  }
  if (reduction.size() > 1) {
    if (auto found = those(absent); !found.empty()) {
      return named(Damage::kLost, std::move(found), "addends were lost");
    }
  }
  if (auto found = those(twice); !found.empty()) {
    return named(Damage::kDoubled, std::move(found), "addends count twice");
  }
  if (key.round > 0) {
    if (auto found = those(stale); !found.empty()) {
      return named(Damage::kStale, std::move(found), "addends are those of the round before");
    }
  }
  const bool can_shift = reduction.sums() && tells(wrong, bits, 2 * count * reduction.size());
  for (int64_t member = 0; can_shift && member < reduction.size(); ++member) {
    const int64_t rank = ranks[static_cast<size_t>(member)];
    const int64_t shift = shift_of(count, wrong, [&](int64_t position, int64_t from) {
      return std::optional<int64_t>(
          reduction.with(member, reduction.addend(key, member, from), position));
    });
    if (shift != 0) {
      return {.damage = Damage::kMisplaced, .ranks = {rank}, .text = shift_text(rank, shift)};
    }
  }
  return {.damage = Damage::kAltered, .ranks = {}, .text = altered_text(wrong)};
}

}  // namespace shardproof::sim::validate
