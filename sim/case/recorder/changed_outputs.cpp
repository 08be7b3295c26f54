#include "sim/case/recorder/changed_outputs.h"

#include <memory>
#include <utility>

#include "model/wrapped_layer.h"

namespace shardproof::sim {
namespace {

class ChangedLayer : public WrappedLayer {
 public:
  ChangedLayer(std::unique_ptr<Layer> inner, std::string slot, ChangeOutput change)
      : WrappedLayer(std::move(inner)), slot_(std::move(slot)), change_(std::move(change)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return change_(inner_->forward(inputs, context), slot_, context);
  }

 private:
  std::string slot_;
  ChangeOutput change_;
};

}  // namespace

void change_outputs(Decoder& model, const ChangeOutput& change) {
  for (Slot* slot : model.slots()) {
    slot->layer = std::make_unique<ChangedLayer>(std::move(slot->layer), slot->name, change);
  }
}

}  // namespace shardproof::sim
