#include "train/context_cut.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "sequence/sequence_shard.h"

namespace shardproof {

int64_t context_multiple(const Mesh& mesh, const TokenCuts& cuts) {
  return sequence_multiple(cuts.ring_layout, mesh.size(cuts.ring_axis)) *
         size_of(mesh, cuts.inner_axes);
}

ContextCut::ContextCut(const Mesh& mesh, int64_t rank, const TokenCuts& cuts, int64_t padded_len)
    : ContextCut(mesh, rank, cuts,
                 SequenceLayout::whole(padded_len, mesh.size(cuts.ring_axis), cuts.ring_layout)) {}

ContextCut::ContextCut(const Mesh& mesh, int64_t rank, const TokenCuts& cuts, SequenceLayout ring)
    : ring_(std::move(ring)),
      tokens_(
          SequenceLayout::from_seq_index(ring_.order(), size_of(mesh, cuts.position_axes(mesh)))),
      axes_(cuts.position_axes(mesh)),
      token_rank_(coordinate_of(mesh, axes_, rank)) {}

at::Tensor ContextCut::local(const at::Tensor& row) const {
  if (whole()) return row;
  if (row.size(1) != tokens_.num_positions()) {
    throw_bad_input(fmt::format("a row of {} positions, where the padded sequence has {}",
                                row.size(1), tokens_.num_positions()),
                    "cut each microbatch by its own layout");
  }
  return sequence_shard(row, tokens_, token_rank_, 1);
}

at::Tensor ContextCut::gather(const at::Tensor& local, MeshComm& comm,
                              const std::string& label) const {
  if (whole()) return local;
  return sequence_gather_with_slice_backward(local, tokens_, comm.along(axes_), 1, label);
}

}  // namespace shardproof
