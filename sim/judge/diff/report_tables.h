// Values that repeat in a rank's report travel once; after that their numbers do.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "sim/judge/diff/cbor.h"
#include "sim/judge/diff/rank_list.h"

namespace shardproof::sim {

inline void put_value(CborWriter& out, const std::string& text) { out.text(text); }
inline void put_value(CborWriter& out, const RankList& list) { out.integers(list.ranks()); }
inline void take_value(CborReader& in, std::string& text) { text = in.text(); }
inline void take_value(CborReader& in, RankList& list) { list = in.integers(); }

template <class Value>
class Table {
 public:
  void put(CborWriter& out, const Value& value) {
    const auto [place, fresh] = numbers_.emplace(value, static_cast<int64_t>(numbers_.size()));
    fresh ? put_value(out, value) : out.integer(place->second);
  }
  Value take(CborReader& in) {
    if (!in.integer_is_next()) {
      take_value(in, values_.emplace_back());
      return values_.back();
    }
    const int64_t number = in.integer();
    if (number < 0 || number >= static_cast<int64_t>(values_.size())) {
      throw InternalError("a rank's report is damaged: an unknown number of a table");
    }
    return values_[static_cast<size_t>(number)];
  }

 private:
  std::map<Value, int64_t> numbers_;
  std::vector<Value> values_;
};

struct Tables {
  Table<std::string> texts;
  Table<RankList> lists;
};

}  // namespace shardproof::sim
