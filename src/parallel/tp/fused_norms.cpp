#include "parallel/tp/fused_norms.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/tp/add_rms_norm.h"

namespace shardproof {
namespace {

class AddAndNorm : public Layer {
 public:
  AddAndNorm(ParameterPtr weight, double eps, std::shared_ptr<AddedNorm> result)
      : weight_(std::move(weight)), eps_(eps), result_(std::move(result)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the fused norm has no gradient");
    *result_ = add_rms_norm(inputs[1], inputs[0], weight_->tensor, eps_);
    return result_->sum;
  }

 private:
  ParameterPtr weight_;
  double eps_;
  std::shared_ptr<AddedNorm> result_;
};

class NormOfSum : public Layer {
 public:
  NormOfSum(ParameterPtr weight, double eps, std::shared_ptr<AddedNorm> result)
      : weight_(std::move(weight)), eps_(eps), result_(std::move(result)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const AddedNorm result = std::exchange(*result_, {});
    if (inputs[0].is_same(result.sum)) return result.normed;
    return inference_rms_norm(inputs[0], weight_->tensor, eps_);
  }
  std::vector<ParameterPtr> parameters() const override { return {weight_}; }

 private:
  ParameterPtr weight_;
  double eps_;
  std::shared_ptr<AddedNorm> result_;
};

}  // namespace

void fuse_norms(Decoder& model) {
  const std::vector<Slot*> slots = model.slots();
  bool fused = false;
  for (size_t i = 0; i + 1 < slots.size(); ++i) {
    Slot &sum = *slots[i], &norm = *slots[i + 1];
    if (sum.role != SlotRole::kResidual || norm.role != SlotRole::kStreamNorm) continue;
    const auto* plain = dynamic_cast<const RmsNorm*>(norm.layer.get());
    SHARDPROOF_ASSERT(plain != nullptr, norm.name + " holds another layer than a plain norm");
    if (plain->unit_offset) {
      throw_refused(norm.name +
                        " multiplies by 1 + weight, but addition and norm in one pass multiply "
                        "by the weight",
                    "leave out run.scoring.fused_norm for this family");
    }
    const auto result = std::make_shared<AddedNorm>();
    const ParameterPtr weight = plain->weight;
    const double eps = plain->eps;
    sum.layer = std::make_unique<AddAndNorm>(weight, eps, result);
    norm.layer = std::make_unique<NormOfSum>(weight, eps, result);
    fused = true;
  }
  SHARDPROOF_ASSERT(fused, "a decoder has a norm behind its last residual");
}

}  // namespace shardproof
