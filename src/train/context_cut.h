// The tokens of a row that one rank of cp x ulysses holds, and the gathering of results.
//
//   cp = 2, ulysses = 2, 8 tokens    over cp (zigzag)      then over ulysses
//   cp 0                             0 1 | 6 7             0 1        6 7
//   cp 1                             2 3 | 4 5             2 3        4 5
//
// The ring works on the cut over cp; the all-to-all inside each cp rank provides that.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "parallel/style/token_cuts.h"
#include "sequence/sequence_layout.h"

namespace shardproof {

// The required divisor of a row's length, without TokenCuts::row_multiple: 2*cp*ulysses for zigzag,
// cp*ulysses for contiguous.
int64_t context_multiple(const Mesh& mesh, const TokenCuts& cuts);

// One microbatch's tokens. Entries are sample * S + position, and -1 in padding and dummies.
struct HeldTokens {
  at::Tensor rows;  // of the dp group
  at::Tensor held;  // of this rank, in its local order
};

class ContextCut {
 public:
  // Cuts rows of `padded_len` positions, a multiple of context_multiple().
  ContextCut(const Mesh& mesh, int64_t rank, const TokenCuts& cuts, int64_t padded_len);
  // Cuts a packed row; `ring` is its cut over the ring axis.
  ContextCut(const Mesh& mesh, int64_t rank, const TokenCuts& cuts, SequenceLayout ring);

  bool whole() const { return tokens_.cp_size() == 1; }  // nothing is cut
  const SequenceLayout& ring() const { return ring_; }   // over cp alone
  // [b, T] -> [b, T / (cp * ulysses)], this rank's tokens in its local order. No communication.
  at::Tensor local(const at::Tensor& row) const;
  // [b, T / (cp * ulysses)] -> [b, T] in sequence order, on every rank. All ranks must compute the
  // same afterwards: the backward keeps this rank's tokens.
  //
  // Forward   all_gather over cp and ulysses
  at::Tensor gather(const at::Tensor& local, MeshComm& comm, const std::string& label) const;

 private:
  SequenceLayout ring_;
  SequenceLayout tokens_;  // over all position axes as one
  std::vector<std::string> axes_;
  int64_t token_rank_;
};

}  // namespace shardproof
