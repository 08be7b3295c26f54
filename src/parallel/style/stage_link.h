// What a chunk of the model reads, and where its result goes, where the chunks of a model lie on
// several ranks. The trainer knows no axis: it asks the link of the one style that has one.
//
//   forward    first chunk: token ids    others: input(), a leaf     -> output(), or the logits
//   backward   last chunk: the loss      others: output_grad()       -> input_grad()
//
// A pass calls begin(), then for each action in order what the table above names, then finish().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "model/decoder.h"
#include "parallel/style/action.h"

namespace shardproof {

class StageLink {
 public:
  virtual ~StageLink() = default;
  virtual bool is_first(int64_t chunk) const = 0;  // reads token ids
  virtual bool is_last(int64_t chunk) const = 0;   // gives logits
  // Where the stream enters a chunk that is not the first, and leaves one that is not the last.
  virtual const Boundary& entry(int64_t chunk) const = 0;
  virtual const Boundary& exit(int64_t chunk) const = 0;
  // Whether something is trained in the chunk or before it in the model; else it has no backward.
  virtual bool has_backward(int64_t chunk) const = 0;

  // `actions` are all of this rank's pass, without those that has_backward() denies, and `backward`
  // says whether it is one with backwards; stream_shapes[i] is the shape that the residual stream
  // of microbatch i has on this rank. In a pass with backwards those of extra heads join it.
  virtual void begin(const std::vector<Action>& actions, bool backward,
                     std::vector<std::vector<int64_t>> stream_shapes) = 0;
  // Call it before each action.
  virtual void before(const Action& action) = 0;
  // Waits for all that was sent.
  virtual void finish() = 0;
  // Call it after a step that threw, on every rank: forgets the pass, and waits for no rank.
  virtual void drop() = 0;
  // Completes the messages of a pass that was dropped; begin() does so too. Every rank calls it.
  virtual void settle() = 0;

  // The stream that a forward reads: a new leaf, which takes a gradient in a pass with backwards if
  // the chunk before it in the model has one. Then alone input_grad() follows.
  virtual at::Tensor input(const Action& forward) = 0;
  virtual void output(const Action& forward, const at::Tensor& stream) = 0;
  virtual at::Tensor output_grad(const Action& backward) = 0;
  virtual void input_grad(const Action& backward, const at::Tensor& grad) = 0;

  // The value of the ranks that hold the last chunk, on all ranks. The others pass zeros of its
  // shape.
  virtual at::Tensor from_last(const at::Tensor& value, std::string_view label) = 0;
};

}  // namespace shardproof
