// Which tokens of a row one rank of cp x ulysses holds, and how their results come together.
//
//   cp = 2, ulysses = 2, 8 tokens    over cp (zigzag)      over ulysses, what cp left
//   cp 0                             0 1 | 6 7             0 1        6 7
//   cp 1                             2 3 | 4 5             2 3        4 5
//
// The ring sees what cp left; the all-to-all inside each cp rank gives it that.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "sequence/sequence_layout.h"

namespace shardproof {

// What a row's length must be a multiple of: 2*cp*ulysses for zigzag, cp*ulysses for contiguous.
int64_t context_multiple(const Mesh& mesh, ContextLayout kind);

// The axes over which the tokens of a sequence are cut: cp and ulysses, where they have more than
// one rank.
std::vector<std::string> context_axes(const Mesh& mesh);
// The axes over which ranks hold different tokens and equal parameters: dp and those.
std::vector<std::string> token_axes(const Mesh& mesh);
int64_t token_rank_count(const Mesh& mesh);  // the product of their sizes

// One microbatch's tokens. Entries are sample * S + position, -1 in padding and dummies.
struct HeldTokens {
  at::Tensor rows;  // [b, T]                      as the dp group has them
  at::Tensor held;  // [b, T / (cp * ulysses)]     what this rank has of them, in its local order
};

class ContextCut {
 public:
  // Of rows of `padded_len` positions, a multiple of context_multiple().
  ContextCut(const Mesh& mesh, int64_t rank, int64_t padded_len, ContextLayout kind);
  // Of a packed row: `ring` says how cp cuts it.
  ContextCut(const Mesh& mesh, int64_t rank, SequenceLayout ring);

  bool whole() const { return tokens_.cp_size() == 1; }  // nothing is cut
  const SequenceLayout& ring() const { return ring_; }   // over cp alone
  // [b, T] -> [b, T / (cp * ulysses)], this rank's tokens in its local order. No communication.
  at::Tensor local(const at::Tensor& row) const;
  // [b, T / (cp * ulysses)] -> [b, T] in sequence order, on every rank. All ranks go on alike: the
  // backward keeps this rank's tokens.
  //
  // Forward   all_gather over cp and ulysses
  at::Tensor gather(const at::Tensor& local, MeshComm& comm, const std::string& label) const;

 private:
  SequenceLayout ring_;
  SequenceLayout tokens_;  // over cp and ulysses as one axis
  int64_t token_rank_;
};

}  // namespace shardproof
