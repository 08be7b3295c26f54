#include "sim/case/recorder/score_noise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <utility>

#include "model/precision.h"
#include "model/wrapped_layer.h"
#include "sim/case/recorder/rounding_noise.h"
#include "tensor/function.h"

namespace shardproof::sim {
namespace {

// Returns `out`. In the backward it adds, with a = factors * sum |grad out * out|,
//   to q                 a keys,  [B, S, H, D]
//   to the output keys   a q
struct MovedScores : Function<MovedScores> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& out, const at::Tensor& q,
                            const at::Tensor& keys, const at::Tensor& factors) {
    ctx->save_for_backward({out, q, keys, factors});
    return out.clone();
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[1], &keys = saved[2], &factors = saved[3];
    const at::ScalarType wide = keys.scalar_type();
    const at::Tensor product = grads[0].to(wide) * saved[0].to(wide);
    const at::Tensor rows = product.abs_().view(q.sizes()).sum(-1, /*keepdim=*/true).mul_(factors);
    return {grads[0], (rows * keys.view(q.sizes())).to(q.scalar_type()),
            (rows * q.to(wide)).view(keys.sizes()), at::Tensor()};
  }
};

class MovedAttention : public WrappedLayer {
 public:
  MovedAttention(std::unique_ptr<Layer> inner, std::string slot, double scale, double roundings,
                 DrawNoise draw)
      : WrappedLayer(std::move(inner)),
        slot_(std::move(slot)),
        scale_(scale),
        roundings_(roundings),
        draw_(std::move(draw)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor out = inner_->forward(inputs, context);
    const at::Tensor &q = inputs[0], &k = inputs[1];
    const at::ScalarType wide = wider_type(q.scalar_type());
    const at::Tensor queries = q.detach().to(wide);
    const at::Tensor keys = inner_->forward({queries, k.detach().to(wide), k.to(wide)}, context);
    const at::Tensor lse = roundings_of_lse(queries, keys.detach().view(q.sizes()));
    const at::Tensor weights = drawn(" weights", lse, context).mul_(lse).add_(1);
    const at::Tensor moved =
        (out.to(wide).view(q.sizes()) * weights).view(out.sizes()).to(out.scalar_type());
    if (!at::GradMode::is_enabled() || !(q.requires_grad() || k.requires_grad())) return moved;
    const double products = 2 * std::sqrt(static_cast<double>(q.size(-1))) * rounding(lse);
    const at::Tensor factors = drawn(" rows", lse, context).mul_(lse + products).mul_(scale_);
    return MovedScores::apply(moved, q, keys, factors);
  }

 private:
  double rounding(const at::Tensor& like) const {
    return roundings_ * half_gap(like.scalar_type());
  }
  // By how much of itself a row's weights move, [B, S, H, 1]: |lse| roundings, at most 1.
  at::Tensor roundings_of_lse(const at::Tensor& queries, const at::Tensor& keys) const {
    const at::Tensor mean_score = (queries * scale_ * keys).sum(-1, /*keepdim=*/true);
    return mean_score.abs_().mul_(rounding(mean_score)).nan_to_num_(0, 1).clamp_max_(1);
  }
  // Draws from [-1, 1], of the shape and dtype of `like`.
  at::Tensor drawn(const char* what, const at::Tensor& like, const StepContext& context) const {
    const std::string stream =
        fmt::format("{}{} {} {}", slot_, what, context.step, context.microbatch);
    return draw_(like, stream).to(like.scalar_type());
  }

  std::string slot_;
  double scale_;  // of the scores
  double roundings_;
  DrawNoise draw_;
};

}  // namespace

void move_scores(Decoder& model, double roundings, const DrawNoise& draw) {
  for (Slot* slot : model.slots(SlotKind::kAttention)) {
    slot->layer = std::make_unique<MovedAttention>(std::move(slot->layer), slot->name,
                                                   model.config().score_scale(), roundings, draw);
  }
}

}  // namespace shardproof::sim
