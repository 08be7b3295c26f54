#include "parallel/data/fully_sharded.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

std::string layer_name(int64_t index) { return fmt::format("model.layers.{}", index); }

bool is_in_layer(const Parameter& parameter, int64_t index) {
  return parameter.name.starts_with(layer_name(index) + ".");
}

}  // namespace

// Calls the unit before and after the computation of its region, forward and backward.
class FullyShardedModel::UnitRegion : public RegionWrap {
 public:
  UnitRegion(FullyShardedModel& model, size_t unit) : model_(model), unit_(unit) {}

  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) override {
    model_.before_forward(unit_);
    FullyShardedModel* model = &model_;
    at::Tensor own = x;
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      // Its gradient is complete when the whole region has added its part.
      own = at::alias(x);
      own.register_hook([model, unit = unit_](const at::Tensor&) { model->after_backward(unit); });
    }
    const at::Tensor y = body(own, context);
    if (at::GradMode::is_enabled() && y.requires_grad()) {
      y.register_hook([model, unit = unit_](const at::Tensor&) { model->before_backward(unit); });
      model_.awaits_backward_[unit_] = true;
    }
    model_.after_forward(unit_);
    return y;
  }

 private:
  FullyShardedModel& model_;
  size_t unit_;
};

FullyShardedModel::FullyShardedModel(const StoreSetup& setup, const ShardAxes& axes,
                                     const FsdpOptions& options)
    : options_(options) {
  const std::vector<ParameterPtr> all = setup.model.parameters();
  const int64_t layer_count = setup.model.config().num_hidden_layers;
  std::vector<std::vector<ParameterPtr>> groups(static_cast<size_t>(layer_count) + 1);
  for (const ParameterPtr& parameter : all) {
    size_t unit = 0;
    for (int64_t i = 0; i < layer_count && unit == 0; ++i) {
      if (is_in_layer(*parameter, i)) unit = static_cast<size_t>(i) + 1;
    }
    places_.emplace_back(unit, groups[unit].size());
    groups[unit].push_back(parameter);
  }
  for (size_t unit = 0; unit < groups.size(); ++unit) {
    const std::string name = unit == 0 ? "model" : layer_name(static_cast<int64_t>(unit) - 1);
    units_.push_back(std::make_unique<FsdpUnit>(name, groups[unit], setup.comm, axes,
                                                options.cpu_offload, setup.dtype, setup.device));
    setup.model.region(name).wrap(std::make_unique<UnitRegion>(*this, unit));
  }
  awaits_backward_.resize(units_.size(), false);
}

FullyShardedModel::~FullyShardedModel() = default;

void FullyShardedModel::before_forward(size_t unit) {
  if (held_) return;
  units_[unit]->gather();
  if (options_.prefetch && unit + 1 < units_.size()) units_[unit + 1]->start_gather();
}

void FullyShardedModel::after_forward(size_t unit) {
  if (held_) return;
  const bool goes_backward = awaits_backward_[unit];
  if (goes_backward && (unit == 0 || !options_.reshard_after_forward)) return;
  units_[unit]->reshard();
}

void FullyShardedModel::before_backward(size_t unit) {
  units_[unit]->gather();
  if (!options_.prefetch) return;
  // Unit 0, the root, comes first in a backward.
  const size_t next = unit == 0 ? units_.size() - 1 : unit - 1;
  if (next != 0 && awaits_backward_[next]) units_[next]->start_gather();
}

void FullyShardedModel::after_backward(size_t unit) {
  if (!awaits_backward_[unit]) return;
  awaits_backward_[unit] = false;
  // First, so that its parameters and the buffer of its gradients never exist together.
  units_[unit]->reshard();
  if (!reduces_) return units_[unit]->keep_gradients();
  // One at a time, so that only one unit's whole gradients are in transit.
  for (const auto& other : units_) other->finish_reduce();
  units_[unit]->start_reduce();
}

void FullyShardedModel::begin_microbatch(bool last) {
  SHARDPROOF_ASSERT(std::count(awaits_backward_.begin(), awaits_backward_.end(), true) == 0,
                    "fsdp finishes a microbatch's backward before the next one's forward");
  reduces_ = last || options_.reduce_each_microbatch;
}

void FullyShardedModel::finish_backward() {
  for (size_t unit = units_.size(); unit-- > 0;) after_backward(unit);
  for (const auto& unit : units_) unit->finish_reduce();
}

std::vector<at::Tensor> FullyShardedModel::take_gradients() {
  std::vector<std::vector<at::Tensor>> by_unit;
  for (const auto& unit : units_) by_unit.push_back(unit->take_gradients());
  std::vector<at::Tensor> gradients;
  for (const auto& [unit, index] : places_) gradients.push_back(by_unit[unit][index]);
  return gradients;
}

void FullyShardedModel::abandon_step() {
  awaits_backward_.assign(units_.size(), false);
  for (const auto& unit : units_) unit->abandon_step();
}

void FullyShardedModel::settle() {
  for (const auto& unit : units_) unit->settle();
}

class FullyShardedModel::Gathered {
 public:
  explicit Gathered(FullyShardedModel& model) : model_(model) {
    try {
      for (const auto& unit : model_.units_) unit->gather();
    } catch (...) {
      for (const auto& unit : model_.units_) unit->reshard();
      throw;
    }
    model_.held_ = true;
  }
  ~Gathered() {
    model_.held_ = false;
    for (const auto& unit : model_.units_) unit->reshard();
  }
  Gathered(const Gathered&) = delete;
  Gathered& operator=(const Gathered&) = delete;

 private:
  FullyShardedModel& model_;
};

std::shared_ptr<void> FullyShardedModel::hold_whole() { return std::make_shared<Gathered>(*this); }

}  // namespace shardproof
