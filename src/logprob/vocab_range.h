// The token ids of the columns of a tp rank's logits.
//
// The vocabulary is padded to a multiple of tp and cut evenly. With V = 10 and tp = 4 a rank holds
// 3 columns, and rank 3 holds id 9 and two columns of padding, which no softmax counts and which
// get no gradient.
//
//   rank 0      rank 1      rank 2      rank 3
//   0 1 2       3 4 5       6 7 8       9 . .
#pragma once

#include <cstdint>

namespace shardproof {

// The token ids of a rank's logits: `start`, `start` + 1, ... The first `counted` of its `columns`
// are ids of the vocabulary; the rest is padding.
struct VocabRange {
  int64_t start = 0;
  int64_t columns = 0;
  int64_t counted = 0;
};
VocabRange vocab_range(int64_t vocab_size, int64_t tp_size, int64_t tp_rank);

}  // namespace shardproof
