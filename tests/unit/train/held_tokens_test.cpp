#include "train/held_tokens.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <map>

#include "base/error.h"
#include "parallel/registry/styles.h"

namespace shardproof::tests {
namespace {

using List = std::vector<int64_t>;

Batch batch_of(const List& lengths, int64_t seq_len) {
  return seeded_batch({.batch_size = static_cast<int64_t>(lengths.size()),
                       .seq_len = seq_len,
                       .lengths = lengths,
                       .vocab_size = 7,
                       .seed = 3});
}

List list_of(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous().view({-1});
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// The number of times that each entry occurs, without -1.
std::map<int64_t, int64_t> counts_of(const std::vector<at::Tensor>& maps) {
  std::map<int64_t, int64_t> counts;
  for (const at::Tensor& map : maps) {
    for (const int64_t entry : list_of(map)) {
      if (entry >= 0) ++counts[entry];
    }
  }
  return counts;
}

TokenCuts cuts_of(const Mesh& mesh, ContextLayout layout) {
  return make_styles({.context = {.layout = layout}}).token_cuts(mesh);
}

// The ranks of dp x cp x ulysses hold each token of the batch once; tp ranks hold the same tokens.
void check_held_once(const Mesh& mesh, const Batch& batch, const List& lengths,
                     const TokenCuts& cuts, const TrainOptions& options) {
  std::vector<at::Tensor> held;
  std::vector<at::Tensor> rows;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const int64_t first = rank - mesh.coordinate("tp", rank);
    const auto own = held_tokens(batch, mesh, rank, cuts, options);
    const auto of_first = held_tokens(batch, mesh, first, cuts, options);
    for (size_t i = 0; i < own.size(); ++i) {
      CHECK(at::equal(own[i].held, of_first[i].held));
      if (rank != first) continue;
      held.push_back(own[i].held);
      const bool tells = mesh.coordinate("cp", rank) == 0 && mesh.coordinate("ulysses", rank) == 0;
      if (tells) rows.push_back(own[i].rows);
    }
  }
  std::map<int64_t, int64_t> golden;
  for (size_t sample = 0; sample < lengths.size(); ++sample) {
    for (int64_t i = 0; i < lengths[sample]; ++i) {
      golden[static_cast<int64_t>(sample) * batch.seq_len() + i] = 1;
    }
  }
  CHECK(counts_of(held) == golden);
  CHECK(counts_of(rows) == golden);
}

}  // namespace

TEST_CASE("packed sequences as they are drawn, before and after zigzag", "[CP-2][CP-3]") {
  // Each is padded to 4, 0 1 2 . | 10 . . ., and has chunks of one position.
  const Batch batch = batch_of({3, 1}, 10);
  TrainOptions options;
  options.batching.kind = BatchingKind::kPacked;
  const Mesh mesh = Mesh::training({.cp = 2});
  const TokenCuts cuts = cuts_of(mesh, ContextLayout::kZigzag);
  CHECK(list_of(held_tokens(batch, mesh, 0, cuts, options)[0].rows) ==
        List{0, 1, 2, -1, 10, -1, -1, -1});
  CHECK(list_of(held_tokens(batch, mesh, 0, cuts, options)[0].held) == List{0, -1, 10, -1});
  CHECK(list_of(held_tokens(batch, mesh, 1, cuts, options)[0].held) == List{1, 2, -1, -1});
  const TokenCuts contiguous = cuts_of(mesh, ContextLayout::kContiguous);  // padded to 4 and 2
  CHECK(list_of(held_tokens(batch, mesh, 0, contiguous, options)[0].held) == List{0, 1, 10});
  CHECK(list_of(held_tokens(batch, mesh, 1, contiguous, options)[0].held) == List{2, -1, -1});
}

TEST_CASE("every token is held once, whatever the batching, layout and mesh", "[CP-2][US-2]") {
  const List lengths = {9, 1, 14, 2, 7};
  const Batch batch = batch_of(lengths, 15);
  for (const Mesh& mesh :
       {Mesh::training({.tp = 2}), Mesh::training({.cp = 3}),
        Mesh::training({.dp = 2, .cp = 2, .tp = 2}), Mesh::training({.dp = 3, .ulysses = 2}),
        Mesh::training({.dp = 2, .cp = 3, .ulysses = 2}), Mesh::training({.dp = 7})}) {
    for (const auto kind : {BatchingKind::kFixed, BatchingKind::kPacked, BatchingKind::kDynamic}) {
      for (const auto layout : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
        INFO(mesh.describe() << " batching " << static_cast<int>(kind) << " " << name_of(layout));
        TrainOptions options;
        options.batching.kind = kind;
        const TokenCuts cuts = cuts_of(mesh, layout);
        check_held_once(mesh, batch, lengths, cuts, options);
        options.micro_batch_size = 2;
        options.batching.token_budget = 48;
        check_held_once(mesh, batch, lengths, cuts, options);
      }
    }
  }
}

}  // namespace shardproof::tests
