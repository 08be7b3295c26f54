#include "sim/case/scenario/read_numerics.h"

#include <fmt/format.h>

namespace shardproof::sim {
namespace {

void read_loss_scale(const Settings& settings, LossScaleSpec& scale) {
  const std::string block = "run.loss_scale.";
  scale.init_scale = settings.get<double>(block + "init_scale");
  scale.growth_factor = settings.get<double>(block + "growth_factor");
  scale.backoff_factor = settings.get<double>(block + "backoff_factor");
  scale.growth_interval = settings.get<int64_t>(block + "growth_interval");
}

void read_huge_advantage(const Settings& settings, DataSpec& data) {
  const std::string key = "data.huge_advantage.sample";
  data.huge_advantage_sample = settings.get<int64_t>(key);
  data.huge_advantage_factor = settings.get<double>("data.huge_advantage.factor");
  if (data.huge_advantage_sample < 0) return;
  if (!data.file.empty()) {
    settings.fail(key, "the batch is read from a file, with its own advantages",
                  "write them there");
  }
  if (data.huge_advantage_sample < data.batch_size) return;
  settings.fail(
      key, fmt::format("sample {} of a batch of {}", data.huge_advantage_sample, data.batch_size),
      "count from 0");
}

}  // namespace

void read_numerics(const Settings& settings, CaseSpec& spec) {
  read_loss_scale(settings, spec.loss_scale);
  read_huge_advantage(settings, spec.data);
  spec.noise_std = settings.get<double>("run.noise_std");
  if (spec.noise_std > 0 && spec.workload != "train") {
    settings.fail("run.noise_std", fmt::format("workload {} takes no noise", spec.workload),
                  "noise the weights of workload train");
  }
}

}  // namespace shardproof::sim
