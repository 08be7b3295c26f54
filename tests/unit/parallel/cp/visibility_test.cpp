// The keys that a query sees, token by token, and the merge of partial attentions.
#include "parallel/cp/visibility.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "parallel/cp/block_attention.h"

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

TEST_CASE("tiles of two sequences never meet", "[CP-3]") {
  const TokenTile queries{.sequence = 0, .begin = 4, .length = 2};
  const TokenTile keys{.sequence = 1, .begin = 0, .length = 2};
  CHECK(visibility(queries, keys, {}) == Visibility::kNone);
  CHECK(visibility(keys, queries, {.causal = false}) == Visibility::kNone);
}

TEST_CASE("token tiles hold every token once and no padding", "[CP-3]") {
  for (const int64_t tile : {1, 2, 3, 100}) {
    const auto layout =
        SequenceLayout::packed({0, 5, 5, 14}, {0, 8, 16, 32}, 2, ContextLayout::kZigzag);
    for (int64_t rank = 0; rank < 2; ++rank) {
      std::vector<int64_t> marked(static_cast<size_t>(layout.local_positions()), -1);
      for (const TokenTile& t : token_tiles(layout, rank, tile)) {
        CHECK(t.length >= 1);
        CHECK(t.length <= tile);
        for (int64_t i = 0; i < t.length; ++i) {
          CHECK(marked[static_cast<size_t>(t.local_begin + i)] == -1);
          marked[static_cast<size_t>(t.local_begin + i)] =
              layout.sequences()[static_cast<size_t>(t.sequence)].start + t.begin + i;
        }
      }
      CHECK(marked == layout.token_indices(rank));
    }
  }
}

TEST_CASE("parts merge by their log-sum-exp, also where one has seen nothing", "[CP-1]") {
  const double none = -std::numeric_limits<double>::infinity();
  const auto part = [](std::vector<double> out, std::vector<double> lse) {
    return PartialAttention{at::tensor(out, at::kDouble).view({1, 1, 1, 4, 1}),
                            at::tensor(lse, at::kDouble).view({1, 1, 1, 4})};
  };
  PartialAttention whole = part({1, 2, 0, 0}, {0, 700, none, none});
  merge_attention(whole, part({3, 4, 5, 0}, {std::log(3.0), 700, -900, none}), 0);
  const at::Tensor out = whole.out.flatten(), lse = whole.lse.flatten();
  CHECK(out[0].item<double>() == Approx(1 * 0.25 + 3 * 0.75));
  CHECK(out[1].item<double>() == Approx(3));
  CHECK(out[2].item<double>() == 5);
  CHECK(out[3].item<double>() == 0);
  CHECK(lse[0].item<double>() == Approx(std::log(4.0)));
  CHECK(lse[1].item<double>() == Approx(700 + std::log(2.0)));
  CHECK(lse[2].item<double>() == -900);
  CHECK(lse[3].item<double>() == none);
}

}  // namespace shardproof::tests
