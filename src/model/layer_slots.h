// The slots of one kind, with the numbers of their layers.
#pragma once

#include <functional>

#include "model/decoder.h"

namespace shardproof {

inline void visit_layer_slots(Decoder& model, SlotKind kind,
                              const std::function<void(int64_t layer, Slot& slot)>& visit) {
  for (int64_t layer = 0; layer < model.config().num_hidden_layers; ++layer) {
    for (Slot* slot : model.slots_of({Segment::Part::kLayer, layer})) {
      if (slot->kind() == kind) visit(layer, *slot);
    }
  }
}

}  // namespace shardproof
