#include "sim/case/recorder/changed_outputs.h"

#include <memory>
#include <utility>

namespace shardproof::sim {
namespace {

class ChangedLayer : public Layer {
 public:
  ChangedLayer(std::unique_ptr<Layer> inner, std::string slot, ChangeOutput change)
      : inner_(std::move(inner)), slot_(std::move(slot)), change_(std::move(change)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return change_(inner_->forward(inputs, context), slot_, context);
  }
  std::vector<ParameterPtr> parameters() const override { return inner_->parameters(); }
  void finish_backward() override { inner_->finish_backward(); }
  void drop_backward() override { inner_->drop_backward(); }

 private:
  std::unique_ptr<Layer> inner_;
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
