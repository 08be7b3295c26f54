#include "logprob/vocab_range.h"

#include <algorithm>

#include "mesh/layout.h"

namespace shardproof {

VocabRange vocab_range(int64_t vocab_size, int64_t tp_size, int64_t tp_rank) {
  const int64_t columns = round_up(vocab_size, tp_size) / tp_size;
  const int64_t start = tp_rank * columns;
  return {.start = start,
          .columns = columns,
          .counted = std::clamp<int64_t>(vocab_size - start, 0, columns)};
}

}  // namespace shardproof
