// Attention, norms and gates written out operation by operation, differentiated by LibTorch. The
// model's own keep less of the forward and have backwards of their own; the golden trusts none.
#pragma once

#include "model/decoder.h"

namespace shardproof::golden {

// Replaces every attention, norm and gate of `model`, which has no plan; parameters and options
// stay.
void write_out(Decoder& model);

}  // namespace shardproof::golden
