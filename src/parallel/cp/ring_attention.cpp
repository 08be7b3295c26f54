#include "parallel/cp/ring_attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "model/precision.h"
#include "parallel/cp/block_attention.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

constexpr int kKvTag = 0;
constexpr int kGradKvTag = 1;

// The tiles and the communication of one call, shared by forward and backward.
struct Ring : torch::CustomClassHolder {
  Ring(const SequenceLayout& layout, Communicator& cp, RingAttentionOptions options)
      : cp(cp), options(std::move(options)) {
    for (int64_t rank = 0; rank < cp.size(); ++rank) {
      tiles.push_back(token_tiles(layout, rank, this->options.tile_length));
    }
  }
  const std::vector<TokenTile>& own_tiles() const { return tiles[static_cast<size_t>(cp->rank())]; }
  // The rank whose keys this rank has at `step`.
  int64_t source(int64_t step) const { return (cp->rank() + cp->size() - step) % cp->size(); }
  std::string label(const char* what) const { return options.label + what; }

  CommunicatorHandle cp;
  RingAttentionOptions options;
  std::vector<std::vector<TokenTile>> tiles;  // by cp rank
};

// [B, T, H, D] -> [B, H_kv, G, T, D] in the wider type.
at::Tensor by_kv_head(const at::Tensor& x, int64_t kv_heads) {
  return x.to(wider_type(x.scalar_type()))
      .unflatten(2, {kv_heads, x.size(2) / kv_heads})
      .permute({0, 2, 3, 1, 4})
      .contiguous();
}

// The inverse; contiguous.
at::Tensor by_token(const at::Tensor& x, at::ScalarType dtype) {
  return x.permute({0, 3, 1, 2, 4}).flatten(2, 3).to(dtype).contiguous();
}

// `kv` is what ranks exchange: k and v of one rank as [2, B, T, H_kv, D], in their own dtype.
KeyBlock block_of(const at::Tensor& kv, const std::vector<TokenTile>& tiles) {
  const at::Tensor wide = kv.to(wider_type(kv.scalar_type())).transpose(2, 3).contiguous();
  return {.tiles = tiles, .k = wide.select(0, 0), .v = wide.select(0, 1)};
}

// Calls visit(rank, k and v of that rank) for every rank's keys, first for this rank's own.
template <class Visit>
void go_round(const Ring& ring, at::Tensor own, const char* label, const Visit& visit) {
  const int64_t size = ring.cp->size();
  if (ring.options.rotation == Rotation::kAllGather && size > 1) {
    const at::Tensor all = ring.cp->all_gather(own.unsqueeze(0), 0, ring.label(label));
    own = at::Tensor();
    for (int64_t step = 0; step < size; ++step) {
      visit(ring.source(step), all.select(0, ring.source(step)));
    }
    return;
  }
  at::Tensor kv = std::move(own);  // frees keys as early as possible
  for (int64_t step = 0; step < size; ++step) {
    std::optional<Handover> next;
    if (step + 1 < size)
      next.emplace(ring.options.rotation, kv, *ring.cp, ring.label(label), kKvTag);
    visit(ring.source(step), kv);
    if (next) kv = next->wait();
  }
}

// Returns the gradient of each rank's keys and values to that rank. In a ring it moves on with
// every block; otherwise all gradients are kept until the end.
class GradientsHome {
 public:
  explicit GradientsHome(const Ring& ring)
      : ring_(ring), gathers_(ring.options.rotation == Rotation::kAllGather) {
    parts_.resize(static_cast<size_t>(ring.cp->size()));
  }

  // [2, B, H_kv, T, D], the gradient of the keys and values of `rank`.
  void add(int64_t rank, const at::Tensor& part) {
    if (gathers_ || ring_.cp->size() == 1) {
      parts_[static_cast<size_t>(rank)] = part;
      return;
    }
    at::Tensor sum = part;
    if (under_way_) sum = under_way_->wait().add_(part);
    under_way_.emplace(ring_.options.rotation, sum, *ring_.cp, ring_.label(" grad_kv backward"),
                       kGradKvTag);
  }

  at::Tensor finish() {
    if (ring_.cp->size() == 1) return parts_[0];
    if (!gathers_) return under_way_->wait();
    return ring_.cp
        ->reduce_scatter(at::stack(parts_), 0, ReduceOp::kSum, ring_.label(" grad_kv backward"))
        .squeeze(0);
  }

 private:
  const Ring& ring_;
  bool gathers_;
  std::vector<at::Tensor> parts_;
  std::optional<Handover> under_way_;
};

struct RingFunction : Function<RingFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& some_sinks,
                            const c10::intrusive_ptr<Ring>& ring) {
    const at::Tensor sinks = some_sinks.value_or(at::Tensor());
    const at::Tensor scaled_q = by_kv_head(q, k.size(2)) * *ring->options.scale;
    PartialAttention whole = no_attention(scaled_q);
    go_round(*ring, at::stack({k, v}), " kv forward", [&](int64_t rank, const at::Tensor& kv) {
      attend(whole, scaled_q, ring->own_tiles(),
             block_of(kv, ring->tiles[static_cast<size_t>(rank)]), ring->options.rule);
    });
    if (sinks.defined()) add_sinks(whole, sinks);
    // Kept before rounding: the backward subtracts products of `out` from sums of similar size.
    const at::Tensor out = by_token(whole.out, whole.out.scalar_type());
    ctx->saved_data["ring"] = c10::IValue::make_capsule(ring);
    ctx->save_for_backward({q, k, v, out, whole.lse, sinks});
    return out.to(q.scalar_type());
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "ring attention has no second derivative");
    const auto capsule = ctx->saved_data["ring"].toCapsule();
    const Ring& ring = static_cast<const Ring&>(*capsule);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3];
    const int64_t kv_heads = k.size(2);
    const double scale = *ring.options.scale;
    AttentionGradient gradient{.scaled_q = by_kv_head(q, kv_heads) * scale,
                               .lse = saved[4],
                               .grad_out = by_kv_head(grads[0], kv_heads),
                               .delta = {},
                               .grad_q = {}};
    gradient.delta = (gradient.grad_out * by_kv_head(out, kv_heads)).sum(-1);
    gradient.grad_q = at::zeros_like(gradient.scaled_q);
    GradientsHome home(ring);
    go_round(ring, at::stack({k, v}), " kv backward", [&](int64_t rank, const at::Tensor& kv) {
      const KeyBlock block = block_of(kv, ring.tiles[static_cast<size_t>(rank)]);
      const at::Tensor grad_kv =
          at::zeros({2, k.size(0), kv_heads, k.size(1), k.size(3)}, gradient.grad_q.options());
      at::Tensor grad_k = grad_kv.select(0, 0), grad_v = grad_kv.select(0, 1);
      attend_backward(gradient, grad_k, grad_v, ring.own_tiles(), block, ring.options.rule);
      home.add(rank, grad_kv);
    });
    const at::Tensor grad_kv = home.finish().transpose(2, 3).to(k.scalar_type());
    const at::Tensor& sinks = saved[5];
    return {by_token(gradient.grad_q.mul_(scale), q.scalar_type()),
            grad_kv.select(0, 0).contiguous(), grad_kv.select(0, 1).contiguous(),
            sinks.defined() ? grad_of_sinks(gradient, sinks) : sinks, at::Tensor()};
  }
};

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
           const SequenceLayout& layout, const Communicator& cp) {
  SHARDPROOF_ASSERT(q.dim() == 4 && k.dim() == 4 && k.sizes() == v.sizes(),
                    "q [B, T, H, D], k and v [B, T, H_kv, D]");
  SHARDPROOF_ASSERT(q.size(0) == k.size(0) && q.size(1) == k.size(1) && q.size(3) == k.size(3),
                    "q, k and v of the same tokens and head dim");
  SHARDPROOF_ASSERT(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
                    "query heads must share kv heads evenly");
  SHARDPROOF_ASSERT(layout.cp_size() == cp.size(), "a layout of as many ranks as the axis");
  SHARDPROOF_ASSERT(layout.local_positions() == q.size(1), "the positions that the layout gives");
}

}  // namespace

at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const SequenceLayout& layout, Communicator& cp,
                          const RingAttentionOptions& options, const at::Tensor& sinks) {
  check(q, k, v, layout, cp);
  RingAttentionOptions complete = options;
  if (!complete.scale) complete.scale = 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const auto some_sinks = sinks.defined() ? std::optional(sinks) : std::nullopt;
  return RingFunction::apply(q, k, v, some_sinks,
                             c10::make_intrusive<Ring>(layout, cp, std::move(complete)));
}

}  // namespace shardproof
