#include "parallel/ulysses/style.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/ulysses/head_shares.h"
#include "parallel/ulysses/sequence_all_to_all.h"

namespace shardproof {
namespace {

constexpr int64_t kTokens = 1;
constexpr int64_t kHeads = 2;

// Repeats heads; autograd sums the gradients of the copies.
at::Tensor repeated(const at::Tensor& heads, int64_t repeats) {
  return repeats == 1 ? heads : heads.repeat_interleave(repeats, kHeads);
}

// Attention over a sequence that is cut over the Ulysses ranks: each rank gets the whole sequence
// for its share of the heads, attends, and sends the results back.
//
//   q [B, T_u, H, D]  --all_to_all-->  [B, T, H/U, D]  --core-->  [B, T, H/U, D]
//                                                      --all_to_all-->  [B, T_u, H, D]
//
// Rank u holds positions [u*T_u, (u+1)*T_u) of the core's sequence. With context parallelism T is
// this cp rank's part of the sequence, in its local order, and the core is the ring over cp. With
// fewer kv heads than ranks k and v are repeated, and gradients are summed.
//
// Forward   three all_to_all, pipelined, "<label> qkv <i> forward"; one, "<label> out 0 forward"
// Backward  the same with scatter and gather dims exchanged
//
// Legend: U Ulysses ranks, T_u = T / U positions of this rank, H heads, D head dim.
class UlyssesAttention : public Layer {
 public:
  UlyssesAttention(std::unique_ptr<Layer> core, Communicator& ulysses, std::string label)
      : core_(std::move(core)), ulysses_(ulysses), label_(std::move(label)) {}

  std::vector<ParameterPtr> parameters() const override { return core_->parameters(); }

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const HeadShares shares =
        head_shares(inputs[0].size(kHeads), inputs[1].size(kHeads), ulysses_.size());
    const auto to_heads = [](const at::Tensor& tensor) {
      return DimTrade{.tensor = tensor, .scatter_dim = kHeads, .gather_dim = kTokens};
    };
    std::vector<at::Tensor> whole =
        sequence_all_to_all({to_heads(inputs[0]), to_heads(repeated(inputs[1], shares.kv_repeats)),
                             to_heads(repeated(inputs[2], shares.kv_repeats))},
                            ulysses_, label_ + " qkv");
    for (const ParameterPtr& sinks : parameters()) {  // those of this rank's heads
      const int64_t heads = whole[0].size(kHeads);
      whole.push_back(sinks->tensor.narrow(0, ulysses_.rank() * heads, heads));
    }
    const at::Tensor out =
        core_->forward(whole, context).unflatten(2, {whole[0].size(2), whole[0].size(3)});
    return sequence_all_to_all({{.tensor = out, .scatter_dim = kTokens, .gather_dim = kHeads}},
                               ulysses_, label_ + " out")[0]
        .flatten(2);
  }

 private:
  std::unique_ptr<Layer> core_;
  Communicator& ulysses_;
  std::string label_;
};

// Heads of a [B, S, heads, D] input on rank 0, by the slot's declared layout.
int64_t local_heads(const Slot& slot, size_t input, int64_t heads, const Mesh& mesh) {
  if (slot.input_layouts.empty()) return heads;
  const Layout& layout = slot.input_layouts[std::min(input, slot.input_layouts.size() - 1)];
  return layout.local_shape({1, 1, heads, 1}, mesh, /*rank=*/0)[2];
}

}  // namespace

void Ulysses::place(Decoder& model, const Mesh& mesh) const {
  const int64_t size = mesh.size("ulysses");
  if (size == 1) return;
  for (const Slot* slot : model.slots(SlotKind::kAttention)) {
    head_shares(local_heads(*slot, 0, model.config().num_attention_heads, mesh),
                local_heads(*slot, 1, model.config().num_key_value_heads, mesh), size);
  }
}

void Ulysses::install(Decoder& model, MeshComm& comm) const {
  if (comm.mesh().size("ulysses") == 1) return;
  Communicator& ulysses = comm.along("ulysses");
  for (Slot* slot : model.slots(SlotKind::kAttention)) {
    slot->layer = std::make_unique<UlyssesAttention>(std::move(slot->layer), ulysses, slot->name);
  }
}

void Ulysses::cut_tokens(TokenCuts& cuts, const Mesh&) const {
  cuts.inner_axes.push_back("ulysses");
}

}  // namespace shardproof
