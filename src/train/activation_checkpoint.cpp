#include "train/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "base/error.h"

namespace shardproof {
namespace {

// The data for recomputing the region, besides its input.
struct KeptRegion : torch::CustomClassHolder {
  KeptRegion(RegionBody body, const StepContext& context)
      : body(std::move(body)), context(context) {
    this->context.forward_phase = Phase::kRecompute;
  }
  RegionBody body;
  StepContext context;
};

struct Recomputed : torch::autograd::Function<Recomputed> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const RegionBody& body, const StepContext& context) {
    ctx->save_for_backward({x});
    ctx->saved_data["region"] =
        c10::IValue::make_capsule(c10::make_intrusive<KeptRegion>(body, context));
    return body(x, context);
  }

  // Runs a separate backward, in which the region's parameters get their gradients.
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto kept =
        c10::static_intrusive_pointer_cast<KeptRegion>(ctx->saved_data["region"].toCapsule());
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_(true);
    {
      const at::AutoGradMode with_grad(true);
      const at::Tensor y = kept->body(x, kept->context);
      torch::autograd::backward({y}, {grads[0]});
    }
    return {x.grad(), at::Tensor(), at::Tensor()};
  }
};

class CheckpointedRegion : public RegionWrap {
 public:
  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) override {
    if (!at::GradMode::is_enabled() || !x.requires_grad()) return body(x, context);
    return Recomputed::apply(x, body, context);
  }
};

}  // namespace

void apply_activation_checkpointing(Decoder& model, CheckpointedRegions regions) {
  if (regions == CheckpointedRegions::kNone) return;
  const char* part = regions == CheckpointedRegions::kMlp ? ".mlp" : "";
  for (int64_t i = 0; i < model.config().num_hidden_layers; ++i) {
    model.region(fmt::format("model.layers.{}{}", i, part))
        .wrap(std::make_unique<CheckpointedRegion>());
  }
}

}  // namespace shardproof
