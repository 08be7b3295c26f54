#include "train/context_cut.h"

#include "parallel/cp/buffers.h"
#include "sequence/sequence_shard.h"

namespace shardproof {

int64_t context_multiple(const Mesh& mesh, ContextLayout kind) {
  return sequence_multiple(kind, mesh.size("cp")) * mesh.size("ulysses");
}

std::vector<std::string> context_axes(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const char* axis : {"cp", "ulysses"}) {
    if (mesh.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

std::vector<std::string> token_axes(const Mesh& mesh) {
  std::vector<std::string> axes = context_axes(mesh);
  axes.insert(axes.begin(), "dp");
  return axes;
}

int64_t token_rank_count(const Mesh& mesh) {
  return mesh.size("dp") * mesh.size("cp") * mesh.size("ulysses");
}

ContextCut::ContextCut(const Mesh& mesh, int64_t rank, int64_t padded_len, ContextLayout kind)
    : ContextCut(mesh, rank, SequenceLayout::whole(padded_len, mesh.size("cp"), kind)) {}

ContextCut::ContextCut(const Mesh& mesh, int64_t rank, SequenceLayout ring)
    : ring_(std::move(ring)),
      tokens_(
          SequenceLayout::from_seq_index(ring_.order(), mesh.size("cp") * mesh.size("ulysses"))),
      token_rank_(mesh.coordinate("cp", rank) * mesh.size("ulysses") +
                  mesh.coordinate("ulysses", rank)) {}

at::Tensor ContextCut::local(const at::Tensor& row) const {
  return whole() ? row : shard_buffers({{row}}, tokens_, token_rank_)[0];
}

at::Tensor ContextCut::gather(const at::Tensor& local, MeshComm& comm,
                              const std::string& label) const {
  if (whole()) return local;
  Communicator& ranks = comm.along(context_axes(comm.mesh()));
  return sequence_gather_with_slice_backward(local, tokens_, ranks, 1, label);
}

}  // namespace shardproof
