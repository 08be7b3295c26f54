#include "golden/router_bias.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "golden/dense_routes.h"
#include "golden/dense_side_losses.h"
#include "model/layer_slots.h"

namespace shardproof::golden {

class RouterBiases::Biased : public Layer {
 public:
  Biased(std::string name, int64_t number, std::shared_ptr<State> state)
      : name_(std::move(name)), number_(number), state_(std::move(state)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor bias = at::tensor(state_->of_layers.at(number_), at::kDouble);
    const DenseRoutes routes = choose_experts(inputs[0].flatten(0, 1), bias, state_->router);
    see_margins(name_, routes.margin, inputs[0].scalar_type(), context);
    const at::Tensor ids =
        routes.chosen.nonzero().select(1, 1).view({inputs[0].size(0), inputs[0].size(1), -1});
    state_->ids[number_] = ids;
    return ids;
  }

 private:
  std::string name_;
  int64_t number_;
  std::shared_ptr<State> state_;
};

RouterBiases::RouterBiases(const sim::CaseSpec& spec, Decoder& model)
    : rule_(spec.selection_bias), biases_(std::make_shared<State>()) {
  if (rule_.rate == 0) return;
  if (spec.precision != Precision::kFloat64) {
    throw_refused(fmt::format("a selection bias moves by the routes of each step, but in {} tokens "
                              "have the experts that one device chose in float64",
                              name_of(spec.precision)),
                  "leave out run.experts.bias, or set precision: float64");
  }
  biases_->router = model.config().router;
  visit_layer_slots(model, SlotKind::kSelection, [this](int64_t layer, Slot& slot) {
    biases_->of_layers[layer].resize(static_cast<size_t>(biases_->router.num_experts));
    slot.layer = std::make_unique<Biased>(slot.name, layer, biases_);
  });
}

void RouterBiases::update(const Batch& batch) {
  for (auto& [layer, bias] : biases_->of_layers) {
    std::vector<int64_t> counts(bias.size());
    for (int64_t sample = 0; sample < batch.size(); ++sample) {
      const int64_t length = batch.input_lengths[sample].item<int64_t>();
      const at::Tensor ids = biases_->ids.at(layer)[sample].narrow(0, 0, length).contiguous();
      for (int64_t i = 0; i < ids.numel(); ++i) {
        ++counts[static_cast<size_t>(ids.data_ptr<int64_t>()[i])];
      }
    }
    bias = dense_bias_update(bias, counts, rule_);
  }
}

}  // namespace shardproof::golden
