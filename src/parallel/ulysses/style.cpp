#include "parallel/ulysses/style.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/ulysses/head_shares.h"
#include "parallel/ulysses/ulysses_attention.h"

namespace shardproof {
namespace {

class UlyssesAttention : public Layer {
 public:
  UlyssesAttention(std::unique_ptr<Layer> core, Communicator& ulysses, std::string label)
      : core_(std::move(core)), ulysses_(ulysses), label_(std::move(label)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const auto core = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
      return core_->forward({q, k, v}, context).unflatten(2, {q.size(2), q.size(3)});
    };
    return ulysses_attention(inputs[0], inputs[1], inputs[2], ulysses_, core, label_).flatten(2);
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

std::vector<Slot*> attention_slots(Decoder& model) {
  std::vector<Slot*> found;
  for (Slot* slot : model.slots()) {
    if (slot->kind() == SlotKind::kAttention) found.push_back(slot);
  }
  return found;
}

}  // namespace

void Ulysses::place(Decoder& model, const Mesh& mesh) const {
  const int64_t size = mesh.size("ulysses");
  if (size == 1) return;
  for (const Slot* slot : attention_slots(model)) {
    head_shares(local_heads(*slot, 0, model.config().num_attention_heads, mesh),
                local_heads(*slot, 1, model.config().num_key_value_heads, mesh), size);
  }
}

void Ulysses::install(Decoder& model, MeshComm& comm) const {
  if (comm.mesh().size("ulysses") == 1) return;
  Communicator& ulysses = comm.along("ulysses");
  for (Slot* slot : attention_slots(model)) {
    slot->layer = std::make_unique<UlyssesAttention>(std::move(slot->layer), ulysses, slot->name);
  }
}

void Ulysses::cut_tokens(TokenCuts& cuts, const Mesh&) const {
  cuts.inner_axes.push_back("ulysses");
}

}  // namespace shardproof
