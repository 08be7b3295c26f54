// The slots of one kind, with the numbers of their layers. Those of extra heads come last.
#pragma once

#include <functional>

#include "model/decoder.h"

namespace shardproof {

inline void visit_layer_slots(Decoder& model, SlotKind kind,
                              const std::function<void(int64_t layer, Slot& slot)>& visit) {
  const int64_t layers = model.config().num_hidden_layers;
  for (int64_t layer = 0; layer < model.config().layers_with_heads(); ++layer) {
    using Part = Segment::Part;
    for (Slot* slot : model.slots_of({layer < layers ? Part::kLayer : Part::kExtraHead, layer})) {
      if (slot->kind() == kind) visit(layer, *slot);
    }
  }
}

}  // namespace shardproof
