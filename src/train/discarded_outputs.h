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

// Activation checkpointing of a model: a region's forward keeps only its input, and its backward
// recomputes the region (random/checkpoint.h; Chen et al., arXiv:1604.06174).

// Wraps the MLP of every layer, or every whole layer. Call it after the plans of tp, cp and ulysses
// and before fsdp, whose units then gather their parameters once for both computations of a layer.
//
// The input is kept as the region says, for example spread over tp (Region::keep_input).
//
// The probe gets the second computation as Phase::kRecompute, with the same bits. The objects that
// a microbatch's StepContext points to must exist until the end of its backward. Collectives in the
// region run once more, in the backward. A region whose input takes no gradient is not wrapped.
//
// Source   NeMo-RL parallelize.py, checkpoint_wrapper around each layer's mlp
void apply_activation_checkpointing(Decoder& model, CheckpointedRegions regions);

}  // namespace shardproof
