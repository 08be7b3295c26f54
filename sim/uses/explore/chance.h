// What is drawn at random.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace shardproof::sim::explore {

template <class Item>
const Item& any(const std::vector<Item>& items, std::mt19937_64& random) {
  return items[random() % items.size()];
}

inline bool happens(double share, std::mt19937_64& random) {
  return static_cast<double>(random() % 1000000) < share * 1e6;
}

}  // namespace shardproof::sim::explore
