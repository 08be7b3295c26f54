// Activation checkpointing: a region's forward keeps its input alone; its backward computes the
// region again (Chen et al., arXiv:1604.06174).
#pragma once

#include "model/decoder.h"

namespace shardproof {

enum class CheckpointedRegions { kNone, kMlp, kLayer };

// Wraps the MLP of every layer, or every layer whole. After the plans of tp, cp and ulysses, before
// fsdp, whose units then gather their parameters once for both computations of a layer.
//
// The second computation is told to the probe as Phase::kRecompute and gives the same bits. What a
// microbatch's StepContext points to has to live until its backward is over. Collectives in the
// region run once more, in backward. A region whose input takes no gradient is left as it is.
//
// Source   NeMo-RL parallelize.py, checkpoint_wrapper around each layer's mlp
void apply_activation_checkpointing(Decoder& model, CheckpointedRegions regions);

}  // namespace shardproof
