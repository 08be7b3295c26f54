// Two files of logprobs of the same batch.
//
//   logprobs   [B, S]  float64, float32, bfloat16 or float16; [b, t] is the logprob of token t
//   input_ids  [B, S]  optional, like all below
//   lengths    [B]     tokens of each row; padding follows
//   mask       [B, S]  0: the token does not count
//   segments   [B, S]  number of the packed sequence, -1 in padding
//   versions   [B, S]  version of the weights that generated the token
//   metadata           temperature, top_p, vocab_size, dtype (of the computation)
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/uses/logprobs/routes.h"

namespace shardproof::sim::logprobs {

// A token that counts and that at least one file gives another value than 0.
struct Token {
  int64_t row, position;
  int64_t id = -1, version = -1;  // -1 without input_ids, versions
  int64_t segment;                // from 0 in each row
  int64_t in_segment;             // position in its segment
  double a, b;
};

struct Settings {
  std::optional<double> temperature, top_p;
};

struct Pair {
  std::string path_a, path_b;
  int64_t rows = 0, length = 0;
  std::vector<double> a, b;         // [B, S]
  std::vector<char> counts;         // [B, S]
  std::vector<int64_t> lengths;     // [B]; empty without them
  std::vector<int64_t> ids;         // [B, S]; empty without input_ids
  std::vector<int64_t> segment;     // [B, S]; all 0 without segments
  std::vector<Token> tokens;        // with finite values, in the order of the batch
  std::vector<int64_t> non_finite;  // indices into [B, S] of the others that count
  std::vector<int64_t> infinite;    // of those that are -infinity in both, and left out
  bool has_ids = false, has_segments = false, has_versions = false, has_lengths = false;
  int64_t vocab_size = 0;  // of the metadata; 0 unknown
  int64_t max_id = -1;
  Settings settings_a, settings_b;
  std::optional<Routes> routes;
  std::string dtype;          // the coarsest of the files' and of the metadata
  double epsilon = 0;         // of `dtype`
  double stored_epsilon = 0;  // of the coarser file
  std::string unread = {};    // "inputids of A": tensors of other names than are known; ""

  int64_t at(int64_t row, int64_t position) const { return row * length + position; }
};

// Throws Error(kBadInput) for files that cannot be compared.
Pair read_pair(const std::string& path_a, const std::string& path_b);

}  // namespace shardproof::sim::logprobs
