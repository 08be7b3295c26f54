// A parallel style spreads a model over axes of the mesh. Each style is a folder beside this one;
// registry/styles.cpp lists them.
//
//             tp                  experts         cp              ulysses       data
//   axes      tp                  parts of ranks  cp              ulysses       dp
//   place     layouts, rules      layouts, rules  -               checks heads  checks copies
//   install   column, row, vocab  dispatch        ring attention  all-to-alls   -
//   tokens    SP: lengths divide  -               zigzag rows     inner parts   samples
//   store     -                   -               -               -             replicated or
//   sharded
//
// The plain model knows no style, and the trainer no axis. What pipeline stages and experts need
// has a place too: a parameter that some ranks do not hold (Cut::held_by), gradients that a
// backward has already summed over an axis of tokens (GradientRule), the order of forwards and
// backwards (Action), and chunks of the model on other ranks (StageLink). tests/unit/parallel/style
// has styles with axes of their own that use all of it.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/style/action.h"
#include "parallel/style/parameter_store.h"
#include "parallel/style/stage_link.h"
#include "parallel/style/token_cuts.h"

namespace shardproof {

class ParallelStyle {
 public:
  virtual ~ParallelStyle() = default;
  virtual std::string_view name() const = 0;          // "tp"
  virtual std::vector<std::string> axes() const = 0;  // of the mesh; no other style has them
  // Declares layouts and gradient rules of parameters and layouts of slots; replaces no layer. No
  // communication. Throws Error(kRefused), with sizes that work, when the model does not fit the
  // mesh. Styles before this one have placed theirs.
  virtual void place(Decoder&, const Mesh&) const {}
  // Replaces layers or wraps regions, after all styles have placed. Makes communicators, which must
  // outlive the model, but does not communicate.
  virtual void install(Decoder&, MeshComm&) const {}
  virtual void cut_tokens(TokenCuts&, const Mesh&) const {}
  // The order in which the rank works on its microbatches, with backwards or without. Only one
  // style has one; null: not this one.
  virtual std::optional<std::vector<Action>> schedule(const Mesh&, int64_t /*rank*/,
                                                      int64_t /*microbatches*/,
                                                      bool /*backward*/) const {
    return std::nullopt;
  }
  // Only one style has a store, and one a link; null: not this one.
  virtual std::unique_ptr<ParameterStore> store(const StoreSetup&) const { return nullptr; }
  virtual std::unique_ptr<StageLink> link(const StoreSetup&) const { return nullptr; }
};

// The styles of one model, in the order in which they are applied. Copies share the styles.
class ParallelStyles {
 public:
  // Asserts that no two own the same axis.
  explicit ParallelStyles(std::vector<std::shared_ptr<const ParallelStyle>> styles);

  // Places all, and replaces no layer. Throws Error(kBadInput) or Error(kRefused) of the styles,
  // and Error(kRefused) for a mesh axis of several ranks that no style owns.
  void place(Decoder& model, const Mesh& mesh) const;
  // Places and installs all. Call it before Decoder::materialise, which cuts the parameters.
  void apply(Decoder& model, MeshComm& comm) const;
  TokenCuts token_cuts(const Mesh& mesh) const;
  // What the rank does in a pass, in order. Without a style that says so one microbatch follows
  // another.
  std::vector<Action> actions(const Mesh& mesh, int64_t rank, int64_t microbatches, int64_t chunks,
                              bool backward) const;
  // Asserts that exactly one style has a store.
  std::unique_ptr<ParameterStore> store(const StoreSetup& setup) const;
  std::unique_ptr<StageLink> link(const StoreSetup& setup) const;  // null: no style has one

 private:
  std::vector<std::shared_ptr<const ParallelStyle>> styles_;
  std::set<std::string> owned_axes_;
};

}  // namespace shardproof
