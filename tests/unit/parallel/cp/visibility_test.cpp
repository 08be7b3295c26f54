// The keys that a query sees, token by token.
#include "parallel/cp/visibility.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

namespace shardproof::tests {
namespace {

bool sees(int64_t query, int64_t key, const AttentionRule& rule) {
  if (rule.causal && key > query) return false;
  return rule.window == 0 || std::abs(query - key) < rule.window;
}

}  // namespace

TEST_CASE("tiles that no query sees are none, that every query sees whole are all",
          "[CP-1][CP-5]") {
  int64_t wrong = 0, judged = 0;
  for (const bool causal : {true, false}) {
    for (const int64_t window : {0, 1, 2, 3, 5, 9}) {
      for (int64_t q = 0; q < 8; ++q) {
        for (int64_t k = 0; k < 8; ++k) {
          for (const int64_t length : {1, 2, 4}) {
            const AttentionRule rule{.causal = causal, .window = window};
            const TokenTile queries{.begin = q, .length = length}, keys{.begin = k, .length = 3};
            const at::Tensor hidden = hidden_keys(queries, keys, rule, at::kCPU);
            int64_t seen = 0;
            for (int64_t i = 0; i < length; ++i) {
              for (int64_t j = 0; j < 3; ++j) {
                const bool visible = sees(q + i, k + j, rule);
                seen += visible ? 1 : 0;
                wrong += hidden[i][j].item<bool>() == visible ? 1 : 0;
              }
            }
            const Visibility golden = seen == 0            ? Visibility::kNone
                                      : seen == length * 3 ? Visibility::kAll
                                                           : Visibility::kSome;
            wrong += visibility(queries, keys, rule) == golden ? 0 : 1;
            ++judged;
          }
        }
      }
    }
  }
  CHECK(wrong == 0);
  CHECK(judged == 2 * 6 * 64 * 3);
}

}  // namespace shardproof::tests
