// The parallel styles that a model is trained with.
#pragma once

#include "parallel/cp/style.h"
#include "parallel/data/style.h"
#include "parallel/experts/style.h"
#include "parallel/pp/style.h"
#include "parallel/tp/style.h"

namespace shardproof {

struct ParallelOptions {
  TensorParallelOptions tensor = {};
  ExpertParallelOptions experts = {};
  ContextParallelOptions context = {};
  PipelineOptions pipeline = {};
  FsdpOptions data = {};
};

// In the order in which they are applied. A new style is one line in styles.cpp.
ParallelStyles make_styles(const ParallelOptions& options);

}  // namespace shardproof
