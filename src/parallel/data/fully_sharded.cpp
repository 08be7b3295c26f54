#include "parallel/data/fully_sharded.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "parallel/style/gradient_rules.h"

namespace shardproof {
namespace {

std::vector<ParameterPtr> parameters_of(const std::vector<Slot*>& slots) {
  std::vector<ParameterPtr> parameters;
  for (const Slot* slot : slots) {
    for (const ParameterPtr& parameter : slot->layer->parameters()) parameters.push_back(parameter);
  }
  return parameters;
}

// A matrix of both ends of the model, or of extra heads, is in two chunks of one rank where those
// lie there. All ranks refuse it: if that one did alone, the others would wait for it.
void check_chunks(const Decoder& model) {
  for (const ParameterPtr& parameter : model.parameters()) {
    if (!parameter->in_two_chunks) continue;
    throw_refused(parameter->name + " is used by two chunks of one rank",
                  model.config().extra_heads > 0
                      ? "set data_parallel to replicate, or a schedule with one chunk on each rank"
                      : "set data_parallel to replicate, or tie_word_embeddings to false");
  }
}

// Whether a segment has a unit of its own. One that serves all extra heads is in the root's, which
// stays gathered until the last of them is done.
bool is_layer(const Decoder& model, const Segment& segment) {
  if (segment.part != Segment::Part::kExtraHead) return segment.part == Segment::Part::kLayer;
  return !model.config().repeats_extra_layer;
}

// The slots of a segment whose parameters are in the unit of its layer, or those of the others.
// Extra heads share the embedding with other parts of the model.
std::vector<Slot*> slots_in_unit(Decoder& model, const Segment& segment, bool of_layer) {
  std::vector<Slot*> slots = model.slots_of(segment);
  std::erase_if(slots, [&](const Slot* slot) {
    return (is_layer(model, segment) && slot->kind() != SlotKind::kEmbedding) != of_layer;
  });
  return slots;
}

}  // namespace

// Calls the store before and after the computation of a region, forward and backward.
class FullyShardedModel::RegionHooks : public RegionWrap {
 public:
  RegionHooks(FullyShardedModel& model, UnitRegion& region) : model_(model), region_(region) {}

  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) override {
    model_.before_forward(region_);
    FullyShardedModel* model = &model_;
    UnitRegion* region = &region_;
    at::Tensor own = x;
    if (at::GradMode::is_enabled() && x.requires_grad()) {
      // Its gradient is complete when the whole region has added its part.
      own = at::alias(x);
      own.register_hook([model, region](const at::Tensor&) { model->after_backward(*region); });
    }
    const at::Tensor y = body(own, context);
    if (at::GradMode::is_enabled() && y.requires_grad()) {
      y.register_hook([model, region](const at::Tensor&) { model->before_backward(*region); });
      ++region_.open;
    }
    model_.after_forward(region_);
    return y;
  }

 private:
  FullyShardedModel& model_;
  UnitRegion& region_;
};

FullyShardedModel::FullyShardedModel(const StoreSetup& setup, const FsdpOptions& options)
    : options_(options) {
  Decoder& model = setup.model;
  check_chunks(model);
  const std::vector<ParameterPtr> all = model.parameters();
  places_.resize(all.size(), {SIZE_MAX, 0});
  for (int64_t chunk = 0; chunk < model.chunk_count(); ++chunk) {
    std::vector<ParameterPtr> outside;  // of all layers
    std::vector<Segment> layers;
    for (const Segment& segment : model.chunk(chunk)) {
      if (is_layer(model, segment)) layers.push_back(segment);
      for (const auto& parameter : parameters_of(slots_in_unit(model, segment, false))) {
        if (std::find(outside.begin(), outside.end(), parameter) == outside.end()) {
          outside.push_back(parameter);
        }
      }
    }
    const std::string root = chunk == 0 ? "model" : fmt::format("chunk.{}", chunk);
    add_region(setup, root, {.chunk = chunk, .is_root = true}, outside);
    for (const Segment& layer : layers) {
      add_region(setup, fmt::format("model.layers.{}", layer.layer),
                 {.chunk = chunk, .is_root = false},
                 parameters_of(slots_in_unit(model, layer, true)));
    }
  }
  std::vector<ParameterPtr> elsewhere;  // on other ranks
  for (size_t i = 0; i < all.size(); ++i) {
    if (places_[i].first == SIZE_MAX) elsewhere.push_back(all[i]);
  }
  add_units(setup, "elsewhere", elsewhere);
}

FullyShardedModel::~FullyShardedModel() = default;

void FullyShardedModel::add_region(const StoreSetup& setup, const std::string& name,
                                   UnitRegion region, const std::vector<ParameterPtr>& parameters) {
  region.units = add_units(setup, name, parameters);
  regions_.push_back(std::make_unique<UnitRegion>(std::move(region)));
  setup.model.region(name).wrap(std::make_unique<RegionHooks>(*this, *regions_.back()));
}

std::vector<FsdpUnit*> FullyShardedModel::add_units(const StoreSetup& setup,
                                                    const std::string& name,
                                                    const std::vector<ParameterPtr>& parameters) {
  std::map<std::vector<std::string>, std::vector<ParameterPtr>> groups;
  for (const ParameterPtr& parameter : parameters) {
    groups[mean_axes(parameter->rule, setup.token_axes)].push_back(parameter);
  }
  const std::vector<ParameterPtr> all = setup.model.parameters();
  std::vector<FsdpUnit*> added;
  for (const auto& [axes, group] : groups) {
    for (size_t i = 0; i < group.size(); ++i) {
      auto& place = places_[std::find(all.begin(), all.end(), group[i]) - all.begin()];
      SHARDPROOF_ASSERT(place.first == SIZE_MAX, group[i]->name + " is in two units");
      place = {units_.size(), i};
    }
    const bool dense = axes == setup.token_axes;
    units_.push_back(std::make_unique<FsdpUnit>(
        dense ? name : fmt::format("{} over {}", name, fmt::join(axes, "+")), group, setup.comm,
        shard_axes(setup.comm.mesh(), axes, options_), options_.cpu_offload, setup.dtype,
        setup.device));
    added.push_back(units_.back().get());
  }
  return added;
}

// The region before or after this one in its chunk, or null.
FullyShardedModel::UnitRegion* FullyShardedModel::next_in_chunk(const UnitRegion& region,
                                                                int64_t step) {
  const auto here = std::find_if(regions_.begin(), regions_.end(),
                                 [&](const auto& other) { return other.get() == &region; });
  const int64_t place = (here - regions_.begin()) + step;
  if (place < 0 || place >= std::ssize(regions_)) return nullptr;
  UnitRegion* next = regions_[static_cast<size_t>(place)].get();
  return next->chunk == region.chunk ? next : nullptr;
}

void FullyShardedModel::start_gather(UnitRegion* region) {
  if (region == nullptr) return;
  for (FsdpUnit* unit : region->units) unit->start_gather();
}

void FullyShardedModel::before_forward(UnitRegion& region) {
  if (held_) return;
  for (FsdpUnit* unit : region.units) unit->gather();
  if (options_.prefetch) start_gather(next_in_chunk(region, 1));
}

void FullyShardedModel::after_forward(UnitRegion& region) {
  if (held_) return;
  if (region.open > 0 && (region.is_root || !options_.reshard_after_forward)) return;
  for (FsdpUnit* unit : region.units) unit->reshard();
}

void FullyShardedModel::before_backward(UnitRegion& region) {
  for (FsdpUnit* unit : region.units) unit->gather();
  if (!options_.prefetch) return;
  // The root comes first in a backward, and then the last layer.
  UnitRegion* next = next_in_chunk(region, -1);
  if (region.is_root) {
    for (next = &region; next_in_chunk(*next, 1) != nullptr;) next = next_in_chunk(*next, 1);
  }
  if (next != nullptr && !next->is_root && next->in_backward) start_gather(next);
}

void FullyShardedModel::after_backward(UnitRegion& region) {
  if (!region.in_backward) return;
  region.in_backward = false;
  const bool stays = --region.open > 0 && (region.is_root || !options_.reshard_after_forward);
  // First, so that its parameters and the buffer of its gradients never exist together.
  for (FsdpUnit* unit : region.units) {
    if (!stays) unit->reshard();
  }
  finish_gradients(region);
}

void FullyShardedModel::finish_gradients(UnitRegion& region) {
  for (FsdpUnit* unit : region.units) {
    if (!reduces_) {
      unit->keep_gradients();
      continue;
    }
    // One at a time, so that only one unit's whole gradients are in transit.
    for (const auto& other : units_) other->finish_reduce();
    unit->start_reduce();
  }
}

void FullyShardedModel::before(const Action& action, Complete complete) {
  reduces_ = complete == Complete::kStep ||
             (complete == Complete::kMicrobatch && options_.reduce_each_microbatch);
  if (action.kind != Action::Kind::kBackward) return;
  for (const auto& region : regions_) {
    region->in_backward = region->chunk == action.chunk && region->open > 0;
  }
}

void FullyShardedModel::after(const Action& action, Complete) {
  if (action.kind == Action::Kind::kForward) return;
  for (size_t i = regions_.size(); i-- > 0;) {
    UnitRegion& region = *regions_[i];
    if (region.chunk != action.chunk) continue;
    if (action.kind == Action::Kind::kBackward) after_backward(region);
    if (action.kind == Action::Kind::kWeights) finish_gradients(region);
  }
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
  for (const auto& region : regions_) {
    region->open = 0;
    region->in_backward = false;
  }
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
