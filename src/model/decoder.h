// A decoder-only transformer for ONE device, as a tree of named slots. It has no parallel code: a
// plan replaces the layers in the slots. Shapes below are those of one device; forward reads head
// counts and widths from the local tensors. One definition serves all families; family.h has the
// differences.
//
//   segments    embed | layer 0 | layer 1 | .. | norm | extra head 1 | .. | head
//   chunk       a run of consecutive segments that a rank computes at once; a pipeline gives each
//               of its ranks other chunks, everywhere else chunk 0 is the whole model
//
// Extra heads predict tokens further ahead in steps of training, as NVIDIA/Megatron-LM
// megatron/core/transformer/multi_token_prediction.py does. Head k = 1 .. D computes from t_i+k
//
//   x_k = norm_k(layer_k(join_k [norm(embedding of t_i+k), norm(x_k-1)]))    x_0: behind the norm
//
// and the head of the model, which all share, gives the logits of t_i+k+1 from x_k. Between the
// norm and the head the stream is x_0, x_1, .. behind each other along the sequence, and the logits
// are too. Layer L + k - 1 is head k, under the names of deepseek_v3's checkpoints. With
// config.repeats_extra_layer the slots of all heads share the parameters of layer L.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/config.h"
#include "model/precision.h"
#include "model/region.h"
#include "model/slot.h"
#include "model/weights.h"

namespace shardproof {

struct Segment {
  enum class Part { kEmbed, kLayer, kNorm, kExtraHead, kHead };
  Part part;
  int64_t layer = 0;  // for kLayer and kExtraHead: its number in the whole model
  bool operator==(const Segment&) const = default;
};

// The stream in front of a segment, where a stage of a pipeline ends and the next one begins.
struct Boundary {
  std::string part;     // "model.layers.2": the segment that the next stage begins with; "": it is
                        // not observed
  int64_t stage = 0;    // that ends there
  int64_t streams = 1;  // in a pass with backwards: that of the model and those of extra heads
  Layout layout = {};   // of the stream, and of its gradient, on both sides
};
std::string part_name(const Segment& segment);
// "model.layers.2.boundary", and "model.layers.2.grad_boundary" for the gradient.
std::string boundary_name(const std::string& part, Phase phase);
// Observes the stream, or its gradient, of a microbatch on one side of the boundary.
void observe_boundary(const Boundary& boundary, Phase phase, const at::Tensor& tensor,
                      const StepContext& context, std::string site = {});

class Decoder {
 public:
  // Slots with plain layers over read-only full weights. materialise() sets dtype and device.
  // Throws Error(kBadInput) when a weight is missing or its shape contradicts the config.
  Decoder(const ModelConfig& config, std::shared_ptr<const WeightMap> weights);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  const ModelConfig& config() const { return config_; }
  // In forward order: model.embed_tokens, model.layers.<i>.<layer_slots(i)>, model.norm, those of
  // extra heads, lm_head.
  std::vector<Slot*> slots();
  std::vector<Slot*> slots(SlotKind kind);  // those of this kind
  Slot& slot(const std::string& name);
  Region& region(const std::string& name);  // region.h has the names; asserts that it exists

  std::vector<Segment> segments() const;  // all, in forward order
  std::vector<Slot*> slots_of(const Segment& segment);
  std::vector<Slot*> slots_of(int64_t chunk);
  // The chunks of this rank, each a run of consecutive segments or empty; no segment stands twice
  // (asserted). Call it before regions are wrapped and before materialise().
  void set_chunks(std::vector<std::vector<Segment>> chunks);
  int64_t chunk_count() const { return std::ssize(chunks_); }
  const std::vector<Segment>& chunk(int64_t chunk) const { return chunks_.at(chunk); }
  // From now on forward() observes the stream, and a backward its gradient, in front of each
  // segment of a chunk but the first one: wherever a boundary between two stages may lie.
  void observe_boundaries() { observes_boundaries_ = true; }

  // Every parameter once, including tied ones, in forward order.
  std::vector<ParameterPtr> parameters() const;

  // Parameters whose names fit a pattern (*, ?) are not trainable. Call it before materialise().
  // Throws Error(kBadInput) for a pattern that fits no parameter, and when none is left to train.
  void freeze(const std::vector<std::string>& patterns);
  // Gives this rank its own leaves. Call it once. Each parameter is cut by its layout, cast as
  // precision.h says, and moved. Parameters that are not trainable take no gradient. Parameters
  // that already have a master belong to fsdp and stay unchanged.
  void materialise(const Mesh& mesh, int64_t rank, at::ScalarType dtype, at::Device device);

  // Runs the segments of a chunk, with context.positions [b, s] and with context.chunk = chunk.
  //
  //   x         [b, s] int64 ids for a chunk that begins with kEmbed, else the stream [b, s, E]
  //   returns   logits [b, s, V] from a chunk that ends with kHead, else the stream; an empty chunk
  //             returns x. Under a plan logits may be [b, s, V_tp]. With context.further_ids the
  //             stream behind the norm and the logits have (1 + D) s positions.
  at::Tensor forward(int64_t chunk, const at::Tensor& x, const StepContext& context);
  // The whole model: input_ids [b, s] -> logits. Asserts that there is one chunk.
  at::Tensor forward(const at::Tensor& input_ids, const StepContext& context);

 private:
  struct Block;
  Slot* add(std::string name, SlotRole role, std::unique_ptr<Layer> layer);
  // One for each name, which several slots may share.
  ParameterPtr parameter(const std::string& name) const;
  ParameterPtr hidden_matrix(const std::string& name, int64_t joined = 1) const;
  std::unique_ptr<Layer> linear(const std::string& name, bool bias) const;
  std::unique_ptr<Layer> make_layer(const std::string& prefix, const std::string& part,
                                    int64_t index, SlotKind kind) const;
  ParameterPtr selection_bias(const std::string& prefix) const;
  std::unique_ptr<Layer> make_experts(const std::string& name) const;
  Block make_block(int64_t index);
  std::unique_ptr<Layer> make_shared(SlotKind kind) const;  // over the matrices of both ends
  at::Tensor run_chunk(int64_t chunk, at::Tensor x, const StepContext& context) const;
  at::Tensor run_attention(const Block& block, const at::Tensor& x, const StepContext& context,
                           const at::Tensor& rotary) const;
  at::Tensor run_latent_attention(const Block& block, const at::Tensor& x,
                                  const StepContext& context, const at::Tensor& rotary) const;
  at::Tensor run_block(const Block& block, const at::Tensor& x, const StepContext& context,
                       const at::Tensor& rotary) const;
  at::Tensor run_mlp(const Block& block, const at::Tensor& x, const StepContext& context) const;
  at::Tensor with_extra_head(const Block& block, int64_t depth, const at::Tensor& x,
                             const StepContext& context, const at::Tensor& rotary) const;
  at::Tensor run_heads(const at::Tensor& x, const StepContext& context) const;

  ModelConfig config_;
  std::shared_ptr<const WeightMap> weights_;
  std::vector<std::unique_ptr<Slot>> slots_;
  std::map<std::string, Slot*> by_name_;
  mutable std::map<std::string, ParameterPtr> parameters_;
  Slot* embed_tokens_ = nullptr;
  ParameterPtr embedding_, head_;
  std::vector<Block> blocks_;  // those of extra heads behind the others
  Slot* norm_ = nullptr;
  Slot* lm_head_ = nullptr;
  std::vector<std::vector<Segment>> chunks_;
  std::vector<Region> chunk_regions_;
  bool materialised_ = false, observes_boundaries_ = false;
  // [rotary_dim / 2], in the wider type; those of sliding layers only if there are any.
  at::Tensor inverse_frequencies_, sliding_inverse_frequencies_;
};

// The plain layers, from which the layers of plans take their parameters.
class Linear : public Layer {  // weight [out, in], bias [out] or null
 public:
  Linear(ParameterPtr weight, ParameterPtr bias)
      : weight(std::move(weight)), bias(std::move(bias)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override;
  ParameterPtr weight, bias;
};

class Embedding : public Layer {  // weight [V, E]; the row of pad_token_id (>= 0) gets no gradient
 public:
  Embedding(ParameterPtr weight, int64_t pad_token_id)
      : weight(std::move(weight)), pad_token_id(pad_token_id) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
  int64_t pad_token_id;
};

// weight [E], or [D] for heads; computed in the wider type. `unit_offset`: factor 1 + weight.
class RmsNorm : public Layer {
 public:
  RmsNorm(ParameterPtr weight, double eps, bool unit_offset = false)
      : weight(std::move(weight)), eps(eps), unit_offset(unit_offset) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight}; }
  ParameterPtr weight;
  double eps;
  bool unit_offset;
};

struct AttentionOptions {
  double scale = 0;    // of the scores; 0: D^-0.5
  int64_t window = 0;  // most keys that a query sees, including its own; 0: no limit
};

// Query positions whose scores attention holds at once; each has batch * heads * seq_len numbers of
// `element` bytes. They fit a core's cache, but are not too few for an efficient product.
int64_t attention_block_rows(int64_t batch, int64_t seq_len, int64_t heads, int64_t element);

// q [B,S,H,D], k, v [B,S,H_kv,D] -> [B,S,H*D]. With sinks [H], each adds exp(sink) to the
// denominator of its head's softmax; a fourth input stands for them.
class CausalAttention : public Layer {
 public:
  explicit CausalAttention(AttentionOptions options = {}, ParameterPtr sinks = nullptr)
      : sinks(std::move(sinks)), options_(options) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  const AttentionOptions& options() const { return options_; }
  std::vector<ParameterPtr> parameters() const override;
  ParameterPtr sinks;

 private:
  AttentionOptions options_;
};

class RotaryKey : public Layer {  // x -> x
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

class Residual : public Layer {  // x, y -> x + y
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
};

// Undefined without sinks: those of a rank's heads if they are an input, else the parameter.
at::Tensor sinks_of(at::TensorList inputs, const ParameterPtr& sinks);

// gate, up [B, S, F] -> activation(gate) * up; gelu by its tanh formula.
class GatedActivation : public Layer {
 public:
  explicit GatedActivation(Activation activation, GateClamp clamp = {})
      : activation_(activation), clamp_(clamp) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;

 private:
  Activation activation_;
  GateClamp clamp_;
};

}  // namespace shardproof
