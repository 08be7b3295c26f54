// Scoring with each residual sum and the norm that reads it in one pass (add_rms_norm.h). Between
// linears of sequence parallelism this is the path reduce-scatter, addition, norm, all-gather.
//
// Source: Megatron-LM inference_layers.py, the fused path of InferenceRowParallelLinear. There the
// pass overwrites the caller's residual and leaves its result in a global buffer; here the two
// layers of one model share it.
#pragma once

#include "model/decoder.h"

namespace shardproof {

// Replaces each residual of the stream and the norm behind it. The residual's layer computes both
// results; the norm's layer returns its own, or computes it when it is given anything but that sum.
// The model can only run without gradients then (asserted).
//
// Throws Error(kRefused) when no norm of the family is directly behind a residual, and for norms
// that multiply by 1 + weight.
void fuse_norms(Decoder& model);

}  // namespace shardproof
