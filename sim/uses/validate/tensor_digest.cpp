// The 128-bit digest of a tensor.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sodium.h>

#include <array>

#include "base/error.h"
#include "observe/probe.h"
#include "sim/uses/validate/training.h"
#include "tensor/dtype_name.h"

namespace shardproof::sim::validate {

std::pair<std::string, std::string> digest_of_tensor(const Observation& observation) {
  const at::NoGradGuard no_grad;
  const at::Tensor here = observation.tensor.to(at::kCPU).contiguous();
  const std::string head =
      fmt::format("{} [{}]", dtype_name(here.scalar_type()), fmt::join(here.sizes(), ","));
  crypto_generichash_state state;
  std::array<unsigned char, 16> digest = {};
  crypto_generichash_init(&state, nullptr, 0, digest.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(head.data()),
                            head.size());
  crypto_generichash_update(&state, static_cast<const unsigned char*>(here.data_ptr()),
                            here.nbytes());
  crypto_generichash_final(&state, digest.data(), digest.size());
  return {fmt::format("step {}.{} {} {}", observation.step, observation.microbatch,
                      phase_name(observation.phase), observation.name),
          fmt::format("{:02x}", fmt::join(digest, ""))};
}

}  // namespace shardproof::sim::validate
