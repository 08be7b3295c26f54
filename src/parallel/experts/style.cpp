#include "parallel/experts/style.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "model/experts.h"
#include "model/no_experts.h"
#include "parallel/experts/dispatch.h"

namespace shardproof {
namespace {

bool is_spread(const Mesh& mesh) { return mesh.size("ep") > 1 || mesh.size("etp") > 1; }

// Sizes that divide both numbers.
std::string common_divisors(int64_t one, int64_t other) {
  std::vector<int64_t> divisors;
  for (int64_t size = 1; size <= std::min(one, other); ++size) {
    if (one % size == 0 && other % size == 0) divisors.push_back(size);
  }
  return fmt::format("{}", fmt::join(divisors, ", "));
}

void check_sizes(const ModelConfig& config, const Mesh& mesh) {
  const int64_t ep = mesh.size("ep"), etp = mesh.size("etp"), edp = mesh.size("edp");
  if (!config.has_experts()) {
    const NoExperts no = no_experts(config);
    throw_refused(
        fmt::format("ep={} and etp={} spread experts, which {} does not have", ep, etp, no.who),
        "set both to 1, or " + no.fix);
  }
  const int64_t experts = config.router.num_experts;
  if (experts % ep != 0) {
    throw_refused(fmt::format("ep={} does not divide the {} experts of a layer", ep, experts),
                  fmt::format("ep = {} would work", common_divisors(experts, ep * edp)));
  }
  if (config.expert_width % etp != 0) {
    throw_refused(
        fmt::format("etp={} does not divide the width {} of an expert", etp, config.expert_width),
        fmt::format("etp = {} would work", common_divisors(config.expert_width, etp * edp)));
  }
}

Experts& plain(const Slot& slot) {
  auto* layer = dynamic_cast<Experts*>(slot.layer.get());
  SHARDPROOF_ASSERT(layer != nullptr, slot.name + " holds another layer than the style replaces");
  return *layer;
}

class SpreadExperts : public Layer {
 public:
  SpreadExperts(const Experts& plain, const ExpertRanks& ranks, ExpertDispatch dispatch,
                std::string label)
      : plain_(plain), ranks_(ranks), dispatch_(dispatch), label_(std::move(label)) {}

  std::vector<ParameterPtr> parameters() const override { return plain_.parameters(); }

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const auto run =
        dispatch_ == ExpertDispatch::kAllToAll ? experts_by_all_to_all : experts_by_all_gather;
    OwnExperts own = plain_.tensors();
    if (own.down_bias.defined() && ranks_.etp.rank() > 0) {  // 0, with the whole gradient
      own.down_bias = own.down_bias - own.down_bias.detach();
    }
    return run(inputs[0].flatten(0, 1), inputs[1].flatten(0, 1), inputs[2].flatten(0, 1), own,
               ranks_, label_, context)
        .view_as(inputs[0]);
  }

 private:
  Experts plain_;
  ExpertRanks ranks_;
  ExpertDispatch dispatch_;
  std::string label_;
};

}  // namespace

void ExpertParallel::place(Decoder& model, const Mesh& mesh) const {
  for (Slot* slot : model.slots(SlotKind::kExperts))
    plain(*slot).rows_multiple = options_.rows_multiple;
  if (!is_spread(mesh)) return;
  check_sizes(model.config(), mesh);
  const int64_t width = model.config().expert_width;
  std::set<ParameterPtr> placed;  // extra heads may share their experts
  for (const Slot* slot : model.slots(SlotKind::kExperts)) {
    const Experts& experts = plain(*slot);
    if (!placed.insert(experts.down).second) continue;
    const auto cut = [&mesh](const ParameterPtr& parameter, const Cut& of) {
      if (mesh.size(of.axis) > 1) parameter->layout.append(of);
    };
    for (const ParameterPtr& parameter : experts.parameters()) {
      cut(parameter, Cut::even(0, "ep"));
      parameter->rule = {.mean_over = std::vector<std::string>{"edp"}};
    }
    if (experts.form.columns_in_turn) {
      cut(experts.gate_up, Cut::even(2, "etp"));
      cut(experts.gate_up_bias, Cut::even(1, "etp"));
      cut(experts.down, Cut::even(1, "etp"));
    } else {
      cut(experts.gate_up, Cut::in_blocks(1, "etp", {width, width}));
      cut(experts.down, Cut::even(2, "etp"));
    }
  }
}

void ExpertParallel::install(Decoder& model, MeshComm& comm) const {
  if (!is_spread(comm.mesh())) return;
  const ExpertRanks ranks{comm.along("ep"), comm.along("etp"),
                          comm.along(std::vector<std::string>{"ep", "etp"})};
  for (Slot* slot : model.slots(SlotKind::kExperts)) {
    slot->layer =
        std::make_unique<SpreadExperts>(plain(*slot), ranks, options_.dispatch, slot->name);
  }
}

}  // namespace shardproof
