#include "parallel/style/style.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shardproof {

ParallelStyles::ParallelStyles(std::vector<std::shared_ptr<const ParallelStyle>> styles)
    : styles_(std::move(styles)) {
  for (const auto& style : styles_) {
    for (const std::string& axis : style->axes()) {
      SHARDPROOF_ASSERT(owned_axes_.insert(axis).second, "two styles own the axis " + axis);
    }
  }
}

void ParallelStyles::place(Decoder& model, const Mesh& mesh) const {
  for (const auto& [axis, size] : mesh.axes()) {
    if (size == 1 || owned_axes_.contains(axis)) continue;
    throw_refused(fmt::format("no parallel style uses the {} ranks of axis {}", size, axis),
                  "set its size to 1, or register a style that owns it");
  }
  for (const auto& style : styles_) style->place(model, mesh);
}

void ParallelStyles::apply(Decoder& model, MeshComm& comm) const {
  place(model, comm.mesh());
  for (const auto& style : styles_) style->install(model, comm);
}

TokenCuts ParallelStyles::token_cuts(const Mesh& mesh) const {
  TokenCuts cuts;
  for (const auto& style : styles_) style->cut_tokens(cuts, mesh);
  return cuts;
}

std::vector<Action> ParallelStyles::actions(const Mesh& mesh, int64_t rank, int64_t microbatches,
                                            int64_t chunks, bool backward) const {
  std::vector<Action> actions =
      backward ? one_at_a_time(microbatches) : forwards_only(microbatches);
  for (const auto& style : styles_) {
    if (auto own = style->schedule(mesh, rank, microbatches, backward)) actions = *std::move(own);
  }
  check_actions(actions, microbatches, chunks, backward);
  return actions;
}

std::unique_ptr<ParameterStore> ParallelStyles::store(const StoreSetup& setup) const {
  std::unique_ptr<ParameterStore> found;
  for (const auto& style : styles_) {
    std::unique_ptr<ParameterStore> store = style->store(setup);
    SHARDPROOF_ASSERT(!store || !found, "two styles store the parameters");
    if (store) found = std::move(store);
  }
  SHARDPROOF_ASSERT(found, "no style stores the parameters");
  return found;
}

std::unique_ptr<StageLink> ParallelStyles::link(const StoreSetup& setup) const {
  std::unique_ptr<StageLink> found;
  for (const auto& style : styles_) {
    std::unique_ptr<StageLink> link = style->link(setup);
    SHARDPROOF_ASSERT(!link || !found, "two styles link the chunks of the model");
    if (link) found = std::move(link);
  }
  return found;
}

}  // namespace shardproof
