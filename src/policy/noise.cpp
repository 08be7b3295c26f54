#include "policy/noise.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "base/seed.h"
#include "tensor/shard.h"

namespace shardproof {

void add_noise(Trainer& trainer, const MeshComm& comm, double std, int64_t seed) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> noised;
  for (size_t i = 0; i < trainer.parameters().size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    const at::Tensor& master = trainer.masters()[i];
    noised.push_back(master);
    if (!parameter.trainable) continue;
    const at::Tensor full = at::randn(
        parameter.global_shape,
        at::detail::createCPUGenerator(generator_seed(seed, "noise on " + parameter.name)),
        at::TensorOptions().dtype(at::kDouble));
    const at::Tensor own = cut(full, parameter.layout, comm.mesh(), comm.rank()).mul_(std);
    noised.back() = master + own.to(master.options());
  }
  trainer.set_masters(noised);
}

}  // namespace shardproof
