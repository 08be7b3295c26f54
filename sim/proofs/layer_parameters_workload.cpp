#include "sim/proofs/layer_parameters_workload.h"

#include <ATen/ATen.h>

#include <limits>

#include "sim/proofs/drawn_layer.h"
#include "sim/proofs/layer_parameter_inputs.h"

namespace shardproof::sim {
namespace {

// [elements of the weight, of the bias], in the type of the weight.
at::Tensor element_counts(int64_t of_weight, int64_t of_bias, const at::Tensor& like) {
  return at::tensor({static_cast<double>(of_weight), static_cast<double>(of_bias)}, at::kDouble)
      .to(like.options());
}

WorkloadTensors plain_parameters(const TensorsByName& full, const Options& options) {
  const LayerParameterOptions asked = layer_parameter_options(options);
  const at::Tensor &x = full.at("x"), &weight = full.at("weight");
  const int64_t of_bias = asked.embedding() ? 0 : full.at("bias").numel();
  WorkloadTensors out;
  if (asked.saves()) {
    const int64_t elements = asked.drawing.cut_features * asked.drawing.whole_features;
    out.push_back({"written", element_counts(elements, of_bias, weight)});
  } else if (asked.from_streams) {
    out.push_back({"draw.weight", plainly_drawn(asked).draws});
  } else {
    out.push_back({"master", weight.detach()});
  }
  out.push_back({"weight", weight.detach()});
  if (!asked.embedding()) out.push_back({"bias", full.at("bias").detach()});
  out.push_back({"counted", element_counts(weight.numel(), of_bias, weight)});
  if (!asked.embedding()) {
    out.push_back({"y", x.matmul(weight.t()) + full.at("bias")});
  } else {
    const at::Tensor y = weight.index({x});
    out.push_back({"y", asked.layer.sequence_parallel ? y.transpose(0, 1) : y});
  }
  return out;
}

// The harness's leaf, whose gradient it judges, takes the place of the layer's. Its own values are
// the answer: the layer's take their place, or NaN until a state is loaded.
void hold_in_leaf(LayerParameter& parameter, const at::Tensor& leaf, bool with_values) {
  leaf.detach().fill_(std::numeric_limits<double>::quiet_NaN());
  if (with_values) leaf.detach().copy_(parameter.tensor.detach());
  parameter.tensor = leaf;
}

void finish_gradients(TpLayer& layer, MeshComm& comm, const std::string& axis) {
  for (LayerParameter* parameter : layer.parameters()) {
    at::Tensor grad = parameter->tensor.grad();
    if (!grad.defined()) grad = at::zeros_like(parameter->tensor);
    const auto sum_over = [&](const std::string& ranks) {
      grad = comm.along(ranks).all_reduce(grad, ReduceOp::kSum, "grad " + parameter->name);
    };
    if (parameter->sequence_parallel) sum_over(axis);
    if (parameter->allreduce) sum_over("dp");
    parameter->tensor.mutable_grad() = grad;
  }
}

int64_t counted_here(const LayerParameter* parameter, const Communicator& tp) {
  const bool counts = parameter != nullptr && is_not_tp_duplicate(*parameter, tp.rank());
  return counts ? parameter->tensor.numel() : 0;
}

// The layer on this mesh before it is used, holding the harness's leaves, and in `out` what it
// tells of where its values come from.
std::shared_ptr<TpLayer> layer_in_leaves(const LayerParameterOptions& asked,
                                         const TensorsByName& local, MeshComm& comm,
                                         WorkloadTensors& out) {
  TpLayerSpec spec = asked.layer;
  spec.dtype = local.at("weight").scalar_type();
  Communicator& tp = comm.along(spec.axis);
  DrawLog log;
  RngTracker rng(&log);
  const auto layer =
      std::make_shared<TpLayer>(asked.saves() ? TpLayer(spec, zero_init(), InitFrom::kMaster, tp)
                                              : drawn_layer(asked, spec, tp, rng));
  for (LayerParameter* parameter : layer->parameters()) {
    hold_in_leaf(*parameter, local.at(parameter->name), !asked.saves());
  }
  if (asked.saves()) {
    const SavedLayer saved = saved_layer(asked, spec.dtype, comm, rng);
    layer->load(saved.state, saved_key(asked, 0));
    out.push_back({"written",
                   element_counts(saved.of_weight, saved.of_bias, local.at("weight")),
                   {},
                   {"dp", "cp", "ulysses", "tp"}});
  } else if (asked.from_streams) {
    out.push_back({"draw.weight", log.tensor("weight"), Layout({Cut::even(0, spec.axis)})});
  } else {
    out.push_back({"master", layer->weight().master});
  }
  return layer;
}

WorkloadTensors sharded_parameters(const TensorsByName& local, MeshComm& comm,
                                   const Options& options, WorkloadNotes& notes) {
  const LayerParameterOptions asked = layer_parameter_options(options);
  const TpLayerSpec& spec = asked.layer;
  check_on_mesh(asked, comm.mesh());  // before anything is sent
  WorkloadTensors out;
  const auto layer = layer_in_leaves(asked, local, comm, out);
  out.push_back({"weight", layer->weight().tensor.detach().clone(), spec.weight_layout()});
  if (layer->bias()) {
    out.push_back({"bias", layer->bias()->tensor.detach().clone(), spec.bias_layout()});
  }
  const Communicator& tp = comm.along(spec.axis);
  out.push_back({"counted",
                 element_counts(counted_here(&layer->weight(), tp), counted_here(layer->bias(), tp),
                                local.at("weight")),
                 {},
                 {spec.axis}});
  out.push_back({"y", layer->forward(local.at("x")), layer_output_layout(spec)});
  notes.after_backward = [layer, &comm, axis = spec.axis]() -> WorkloadTensors {
    finish_gradients(*layer, comm, axis);
    return {};
  };
  return out;
}

}  // namespace

Workload layer_parameters_workload() {
  return {.name = "layer_parameters",
          .about = "first values, saved state and marks of a tensor parallel layer's parameters",
          .options = {{"layer", "column"},
                      {"samples", 12},
                      {"tokens", 12},
                      {"cut_features", 24},
                      {"whole_features", 5},
                      {"stride", 1},
                      {"sequence_parallel", false},
                      {"expert_parallel", false},
                      {"axis", "tp"},
                      {"init", "master"},
                      {"tp_ranks", 1},
                      {"stream", ""},
                      {"saved_tp", 0},
                      {"saved_features", 0},
                      {"stacked", false},
                      {"one_run", false}},
          .inputs = layer_parameter_inputs,
          .plain = plain_parameters,
          .sharded_with_notes = sharded_parameters};
}

}  // namespace shardproof::sim
