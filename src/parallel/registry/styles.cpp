#include "parallel/registry/styles.h"

#include "parallel/ulysses/style.h"

namespace shardproof {

ParallelStyles make_styles(const ParallelOptions& options) {
  return ParallelStyles({
      std::make_shared<TensorParallel>(options.tensor),
      std::make_shared<ExpertParallel>(options.experts),
      std::make_shared<ContextParallel>(options.context),
      std::make_shared<Ulysses>(),
      std::make_shared<PipelineParallel>(options.pipeline),
      std::make_shared<DataParallel>(options.data),
  });
}

}  // namespace shardproof
