// Attention, norms and gates written out operation by operation and differentiated by LibTorch. The
// model's own layers keep less of the forward and have their own backwards.
#pragma once

#include "model/decoder.h"

namespace shardproof::golden {

// Replaces the attention, norms and gates of `model`, which has no plan. Parameters and
// options stay.
void write_out(Decoder& model);

}  // namespace shardproof::golden
