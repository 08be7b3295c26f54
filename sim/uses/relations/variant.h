// A case in memory: what a relation changes, and how a changed case becomes files again.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "model/weights.h"
#include "observe/observation_kind.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::relations {

struct Variant {
  CaseSpec spec;           // spec.model is the config.json
  ModelConfig config;      // of spec.model
  WeightMap weights = {};  // full, float64
  Batch batch = {};        // every number is finite
};

// Throws Error(kBadInput) as the readers of config, weights and batch do.
Variant load_variant(const CaseSpec& spec);
// The case with what a relation can compare: one step, no faults, no noise, no comparison with a
// golden.
CaseSpec plain_run(CaseSpec spec);

// Every mesh cuts rows whose length is a multiple of it.
int64_t row_multiple(const CaseSpec& spec);
// "", or why a relation between heads of q and k does not hold.
std::string has_no_head_norms(const CaseSpec& spec, const ModelConfig& config);

// Sets a key of the decoder's part of config.json, and reads it again. Null removes the key.
void set_model_key(Variant& variant, const std::string& key, const nlohmann::json& value);
// Writes the rotary bases and scalings of `config` in one spelling, and reads them again.
void set_rope(Variant& variant, const ModelConfig& config);
// Sets the kind of each layer, with a window of `window` tokens in the sliding ones. The family
// must have windows.
void set_windows(Variant& variant, const std::vector<bool>& sliding, int64_t window);

// Writes the variant into `folder` as a case folder (docs/cases.md). Returns the case that reads
// weights and batch from there.
CaseSpec write_variant(const Variant& variant, const std::string& folder);

// Linear changes of weights, by name. A change w -> A w (+ constant) of a weight takes the gradient
// of the changed weight back to that of the weight itself: g -> A^T g.

// As the dump of a run names them.
using Values = std::map<std::string, at::Tensor>;

// The dump says no more of a value than its name.
inline ObservationKind kind_of_value(const std::string& name) {
  return kind_of_name(Phase::kStep, name);
}
inline std::string gradient_of(const std::string& parameter) {
  return observed_name(ObservationKind::kGradient, parameter);
}

struct TensorMap {
  std::function<at::Tensor(const at::Tensor&)> change;  // w -> A w (+ constant)
  std::function<at::Tensor(const at::Tensor&)> back;    // g -> A^T g
};

TensorMap scaled(double factor);
// The norm's factor (weight, or 1 + weight) times `factor`.
TensorMap norm_scaled(double factor, bool unit_offset);
// Index i of dim `dim` is what index order[i] was.
TensorMap permuted(int64_t dim, const std::vector<int64_t>& order);
// Index i of dim `dim` times factors[i].
TensorMap scaled_along(int64_t dim, const std::vector<double>& factors);
// `size` indices along `dim`: index places[i] is index i times `factor`, all others are 0.
TensorMap placed(int64_t dim, const std::vector<int64_t>& places, int64_t size, double factor = 1);
// Every `rows` indices of dim 0 (a head) `times` times, one behind the other.
TensorMap repeated_heads(int64_t rows, int64_t times);
// Rows of heads of `head_dim` (dim 0): the pair (i, i + head_dim / 2) of head h is turned by the
// angle(h, i).
TensorMap turned_heads(int64_t head_dim, const std::function<double(int64_t, int64_t)>& angle);

// The changes of a model's weights. A weight without one stays.
class WeightMaps {
 public:
  explicit WeightMaps(const Variant& variant);
  // The weight of this name, which must exist; after the changes that it has already.
  void add(const std::string& name, const TensorMap& map);
  // In every layer: the weight and, if there is one, the bias, whose dim 0 is what the linear
  // returns.
  void add_rows(const std::string& part, const TensorMap& map);
  // In every layer: the weight of a linear, whose dim 1 is what it takes.
  void add_columns(const std::string& part, const TensorMap& map);
  // The norms of the residual stream: those of every layer, and the last one.
  void add_norms(const TensorMap& map);

  void change(WeightMap& weights) const;
  void back(Values& values) const;  // gradients: "grad.<name>"

 private:
  bool has(const std::string& name) const { return names_.count(name) != 0; }

  ModelConfig config_;
  std::set<std::string> names_;
  std::map<std::string, std::vector<TensorMap>> maps_;
};

std::string layer_part(int64_t layer, const std::string& part);  // "model.layers.<layer>.<part>"

}  // namespace shardproof::sim::relations
