#include "sim/world/rank/case_inputs.h"

#include <sys/stat.h>

#include "sim/case/inputs/case_data.h"

namespace shardproof::sim::world {
namespace {

// The size up to which a waiting world keeps the golden of its last case mapped.
constexpr int64_t kSmallGolden = int64_t{128} << 20;

// Cases with an equal key draw equal weights. Empty: they come from a file.
std::string draws_key(const CaseSpec& spec) {
  if (!spec.weights_folder.empty()) return "";
  return nlohmann::json{spec.model, spec.seed, spec.selection_bias.rate}.dump();
}

// `known`: the weights, where an earlier case drew the same.
std::shared_ptr<const CaseInputs> load_case_inputs(const CaseSpec& spec, bool reads_weights,
                                                   std::shared_ptr<const WeightMap> known) {
  auto inputs = std::make_shared<CaseInputs>();
  inputs->config = load_case_config(spec);
  inputs->weights = known           ? std::move(known)
                    : reads_weights ? load_case_weights(spec, inputs->config)
                                    : weights_to_come(inputs->config);
  inputs->batch = load_case_batch(spec, inputs->config.vocab_size);
  return inputs;
}

}  // namespace

std::shared_ptr<const CaseInputs> CaseInputsCache::get(const CaseSpec& spec, bool reads_weights) {
  const Lock lock(mutex_);
  const std::string key = golden_key(spec), draws = draws_key(spec);
  if (!inputs_ || key != key_ || (reads_weights && !has_weights_)) {
    const bool known = inputs_ && has_weights_ && !draws.empty() && draws == draws_key_;
    auto weights = known ? inputs_->weights : nullptr;
    reads_weights = reads_weights || known;
    inputs_ = nullptr;  // before the next ones need their memory
    inputs_ = load_case_inputs(spec, reads_weights, std::move(weights));
    key_ = key;
    draws_key_ = draws;
    has_weights_ = reads_weights;
  }
  return inputs_;
}

std::shared_ptr<const GoldenRecord> CaseInputsCache::golden(int fd) {
  if (fd < 0) return nullptr;
  const Lock lock(mutex_);
  struct stat file {};
  if (::fstat(fd, &file) != 0) file = {};
  const std::pair<uint64_t, uint64_t> id = {file.st_dev, file.st_ino};
  if (auto known = golden_.lock(); known && id == golden_file_) return known;
  small_golden_.reset();
  const auto record = std::make_shared<const GoldenRecord>(GoldenRecord::from_fd(fd));
  golden_ = record;
  golden_file_ = id;
  if (file.st_size <= kSmallGolden) small_golden_ = record;
  return record;
}

}  // namespace shardproof::sim::world
