#include "parallel/tp/fused_norms.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/tp/add_rms_norm.h"

namespace shardproof {
namespace {

// A norm, and what the last pass over the residual before it gave.
struct FusedNorm {
  ParameterPtr weight;
  double eps;
  AddedNorm result = {};
};

class AddAndNorm : public Layer {
 public:
  explicit AddAndNorm(std::shared_ptr<FusedNorm> norm) : norm_(std::move(norm)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "the fused norm has no gradient");
    norm_->result = add_rms_norm(inputs[1], inputs[0], norm_->weight->tensor, norm_->eps);
    return norm_->result.sum;
  }

 private:
  std::shared_ptr<FusedNorm> norm_;
};

class NormOfSum : public Layer {
 public:
  explicit NormOfSum(std::shared_ptr<FusedNorm> norm) : norm_(std::move(norm)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const AddedNorm result = std::exchange(norm_->result, {});
    if (inputs[0].is_same(result.sum)) return result.normed;
    return inference_rms_norm(inputs[0], norm_->weight->tensor, norm_->eps);
  }
  std::vector<ParameterPtr> parameters() const override { return {norm_->weight}; }

 private:
  std::shared_ptr<FusedNorm> norm_;
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
    const double eps = plain->eps;
    const auto shared = std::make_shared<FusedNorm>(FusedNorm{.weight = plain->weight, .eps = eps});
    sum.layer = std::make_unique<AddAndNorm>(shared);
    norm.layer = std::make_unique<NormOfSum>(shared);
    fused = true;
  }
  SHARDPROOF_ASSERT(fused, "a decoder has a norm behind its last residual");
}

}  // namespace shardproof
