// What a rank keeps of each parameter between steps, and how its gradients are collected.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/style/action.h"

namespace shardproof {

struct StoreSetup {
  Decoder& model;  // all styles are installed; not yet materialised
  MeshComm& comm;
  at::ScalarType dtype;
  at::Device device;
  std::vector<std::string> token_axes;  // over which ranks hold different tokens
};

// Every rank makes the same calls. The model and the communicators must outlive the store, and the
// store every backward.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;

  // Call these around each action of a pass with backwards (completed_by).
  virtual void before(const Action& action, Complete complete) = 0;
  virtual void after(const Action& action, Complete complete) = 0;
  // This rank's gradients since the last call, one per parameter of the model, in its order and in
  // the wider type; zeros where no backward left any.
  virtual std::vector<at::Tensor> take_gradients() = 0;
  // Replaces each gradient by its mean over mean_axes() (gradient_rules.h), where take_gradients()
  // has not already given that.
  virtual void average(std::vector<at::Tensor>& grads) = 0;
  // Makes what the forward reads equal to the masters, which have changed. No communication.
  virtual void refresh() = 0;
  // What the forward reads in place of the parameter's master until the next refresh; undefined
  // where the forward reads the master, or makes a copy when it needs one.
  virtual at::Tensor leaf_of(const Parameter& parameter) const = 0;
  // Call it before the masters change from outside, and before the model ends: waits for calls of
  // an abandoned step, and drops what belongs to the old masters.
  virtual void settle() = 0;
  // Call it after a forward or backward that threw: drops gradients. It waits for no rank.
  virtual void abandon_step() = 0;
  // While the result exists, forwards without gradients find every parameter whole and make no
  // calls for it. Its end frees them, even after an exception.
  virtual std::shared_ptr<void> hold_whole() = 0;
};

}  // namespace shardproof
