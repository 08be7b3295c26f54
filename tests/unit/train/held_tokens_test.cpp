#include "train/held_tokens.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "parallel/registry/styles.h"

namespace shardproof::tests {
namespace {

// The entries of all maps in their order, without -1.
at::Tensor entries_of(const std::vector<at::Tensor>& maps) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& map : maps) flat.push_back(map.flatten());
  const at::Tensor all = at::cat(flat);
  return std::get<0>(all.masked_select(all.ge(0)).sort());
}

// The ranks of dp x cp x ulysses hold each token of the batch once; tp ranks hold the same tokens.
void check_held_once(const Mesh& mesh, const Batch& batch, const TokenCuts& cuts,
                     const TrainOptions& options) {
  std::vector<at::Tensor> held, rows;
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
  const at::Tensor tokens = at::arange(batch.input_ids.numel(), at::kLong).view_as(batch.input_ids);
  const at::Tensor golden =
      tokens.masked_select(tokens.remainder(batch.seq_len()) < batch.input_lengths.unsqueeze(1));
  CHECK(at::equal(entries_of(held), golden));
  CHECK(at::equal(entries_of(rows), golden));
}

}  // namespace

TEST_CASE("every token is held once, whatever the batching, layout and mesh", "[CP-2][US-2]") {
  const Batch batch = seeded_batch(
      {.batch_size = 5, .seq_len = 15, .lengths = {9, 1, 14, 2, 7}, .vocab_size = 7, .seed = 3});
  for (const Mesh& mesh :
       {Mesh::training({.tp = 2}), Mesh::training({.cp = 3}),
        Mesh::training({.dp = 2, .cp = 2, .tp = 2}), Mesh::training({.dp = 3, .ulysses = 2}),
        Mesh::training({.dp = 2, .cp = 3, .ulysses = 2}), Mesh::training({.dp = 7})}) {
    for (const auto kind : {BatchingKind::kFixed, BatchingKind::kPacked, BatchingKind::kDynamic}) {
      for (const auto layout : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
        INFO(mesh.describe() << " batching " << static_cast<int>(kind) << " " << name_of(layout));
        TrainOptions options;
        options.batching.kind = kind;
        const TokenCuts cuts = make_styles({.context = {.layout = layout}}).token_cuts(mesh);
        check_held_once(mesh, batch, cuts, options);
        options.micro_batch_size = 2;
        options.batching.token_budget = 48;
        check_held_once(mesh, batch, cuts, options);
      }
    }
  }
}

}  // namespace shardproof::tests
