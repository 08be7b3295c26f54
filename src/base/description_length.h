// What a cause costs in words, and how near two causes may be: nats of a description length.
#pragma once

namespace shardproof {

inline constexpr double kFreeNumber = 14;  // a real number that a claim names
inline constexpr double kAsGood = 3;       // claims so near to the best follow it after "or"

}  // namespace shardproof
