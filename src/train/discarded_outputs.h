// Frees the outputs of small layers once the linears behind them have read them. The backward
// computes them again just before it reads them (random/checkpoint_without_output.h).
#pragma once

#include "base/training_choices.h"
#include "model/decoder.h"

namespace shardproof {

// Wraps the layers, and those that every path from their readers goes through:
//   norms         before q, k, v: until the attention; before gate, up: until the activation
//   activations   until the down projection
// Norms that nothing multiplies stay (of heads, of what is added to the stream, the last one), and
// so does the input of a checkpointed MLP.
// Call it after the plans of tp, cp and ulysses, which replace layers. Nothing communicates twice.
//
// Source: Megatron-LM random.py, CheckpointWithoutOutput, as --recompute-modules layernorm mlp_act
// uses it.
void discard_outputs(Decoder& model, DiscardedOutputs outputs);

}  // namespace shardproof
