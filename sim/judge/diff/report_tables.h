// Values that repeat in a rank's report travel once; after that their numbers do.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "sim/case/cbor.h"
#include "sim/judge/diff/rank_list.h"

namespace shardproof::sim::judge {

inline void table_value(CborWriter& out, const std::string& text) { out(text); }
inline void table_value(CborReader& in, std::string& text) { in(text); }
inline void table_value(CborWriter& out, const RankList& list) { out(list.ranks()); }
inline void table_value(CborReader& in, RankList& list) {
  std::vector<int64_t> ranks;
  in(ranks);
  list = ranks;
}

template <class Value>
class Table {
 public:
  void field(CborWriter& out, const Value& value) {
    const auto [place, fresh] = numbers_.emplace(value, static_cast<int64_t>(numbers_.size()));
    fresh ? table_value(out, value) : out(place->second);
  }
  void field(CborReader& in, Value& value) {
    if (!in.integer_is_next()) {
      table_value(in, value);
      values_.push_back(value);
      return;
    }
    int64_t number = 0;
    in(number);
    if (number < 0 || number >= static_cast<int64_t>(values_.size())) {
      throw InternalError("a rank's report is damaged: an unknown number of a table");
    }
    value = values_[static_cast<size_t>(number)];
  }

 private:
  std::map<Value, int64_t> numbers_;
  std::vector<Value> values_;
};

struct Tables {
  Table<std::string> texts;
  Table<RankList> lists;
};

}  // namespace shardproof::sim::judge
