#include "sim/uses/relations/relations.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "sim/case/names.h"

namespace shardproof::sim::relations {

namespace {

const std::string kLabel = "relation=";

// Why no relation says anything about the case; "" when some may.
std::string why_none(const CaseSpec& spec) {
  const bool model = spec.is(ModelWorkload::kTrain) || spec.is(ModelWorkload::kLogprobs);
  if (!model) return "relations are of the workloads train and logprobs";
  if (!spec.judged) return "the case is not judged";
  if (!spec.faults.empty()) return "relations are of cases without faults";
  if (spec.expect.verdict != Verdict::kMatch) return "relations are of cases that match";
  return "";
}

std::string with_label(std::string name, const std::string& relation) {
  if (!name.ends_with(']')) return name + "[" + kLabel + relation + "]";
  name.back() = ',';
  return name + kLabel + relation + "]";
}

void drop_what_is_not_compared(Values& values, bool same_norm) {
  std::erase_if(values, [&](const auto& named) {
    const std::string& name = named.first;
    const bool norm = kind_of_value(name) == ObservationKind::kGradNorm;
    return name.starts_with("step") || (norm && !same_norm);
  });
}

}  // namespace

const std::vector<Relation>& relations() {
  static const std::vector<Relation> all = [] {
    std::vector<Relation> rows = batch_relations();
    for (const auto& more : {stage_relations(), expert_relations()}) {
      rows.insert(rows.end(), more.begin(), more.end());
    }
    for (Relation& row : rows) row.beside_experts = row.beside_heads = true;
    for (const auto& more : {weight_relations(), config_relations()}) {
      rows.insert(rows.end(), more.begin(), more.end());
    }
    return rows;
  }();
  return all;
}

std::string why_not(const Relation& relation, const CaseSpec& spec) {
  try {
    const ModelConfig config = ModelConfig::from_json(spec.model);
    const std::string experts = why_not_beside_experts(relation, spec, config);
    if (!experts.empty()) return experts;
    if (config.extra_heads > 0 && !relation.beside_heads) return "the model has extra heads";
    if (spec.precision != Precision::kFloat64 && !relation.every_precision) {
      return "relations but those of stages are judged in float64 only";
    }
    return relation.why_not == nullptr ? "" : relation.why_not(spec, config);
  } catch (const Error& error) {  // a run without relations says it with its place
    return error.what();
  }
}

RelatedPair related_pair(const Relation& relation, const Variant& variant) {
  Variant plain = variant;
  plain.spec = plain_run(variant.spec);
  Variant second = plain;
  if (relation.change != nullptr) relation.change(plain, second);
  RelatedPair pair{std::move(plain), second, WeightMaps(second)};
  if (relation.change_weights != nullptr) relation.change_weights(pair.second, pair.maps);
  pair.maps.change(pair.second.weights);
  return pair;
}

bool is_unchanged(const Relation& relation, const RelatedPair& pair) {
  if (relation.change == nullptr && relation.change_weights == nullptr) return false;
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return a.defined() == b.defined() && (!a.defined() || at::equal(a, b));
  };
  const Variant &a = pair.first, &b = pair.second;
  const bool same_batch = std::ranges::all_of(kBatchTensors, [&](const BatchTensor& one) {
    return same(a.batch.*one.tensor, b.batch.*one.tensor);
  });
  const auto same_weight = [&](const auto& x, const auto& y) {
    return x.first == y.first && same(x.second, y.second);
  };
  return to_json(a.spec) == to_json(b.spec) && same_batch &&
         std::ranges::equal(a.weights, b.weights, same_weight);
}

void bring_back(const Relation& relation, const RelatedPair& pair, Values& first, Values& second) {
  pair.maps.back(second);
  if (relation.back != nullptr) relation.back(pair.first, pair.second, first, second);
  drop_what_is_not_compared(first, relation.same_norm);
  drop_what_is_not_compared(second, relation.same_norm);
}

std::vector<CaseSpec> with_relations(const std::vector<CaseSpec>& cases) {
  std::vector<CaseSpec> related;
  for (const CaseSpec& spec : cases) {
    const size_t before = related.size();
    const std::string none = spec.skip.empty() ? why_none(spec) : spec.skip;
    std::string first_reason;
    for (const Relation& relation : relations()) {
      const std::string reason = none.empty() ? why_not(relation, spec) : none;
      if (first_reason.empty()) first_reason = reason;
      if (!reason.empty()) continue;
      related.push_back(spec);
      related.back().name = with_label(spec.name, relation.name);
      related.back().reference = {};  // its values are compared with those of the changed case
      related.back().sample_rows = 0;
    }
    if (related.size() > before) continue;
    related.push_back(spec);
    related.back().skip = spec.skip.empty() ? kNoRelation + first_reason : spec.skip;
  }
  return related;
}

const Relation* relation_of(const std::string& name) {
  const size_t label = name.rfind(kLabel);
  if (label == name.npos || !name.ends_with(']')) return nullptr;
  const size_t begin = label + kLabel.size();
  const std::string called = name.substr(begin, name.size() - 1 - begin);
  for (const Relation& relation : relations()) {
    if (called == relation.name) return &relation;
  }
  return nullptr;
}

std::string name_without_relation(const std::string& name) {
  const size_t label = name.rfind(kLabel);
  if (label == name.npos || label == 0) return name;
  const std::string rest = name.substr(0, label - 1);  // without "[" or ","
  return name[label - 1] == '[' ? rest : rest + "]";
}

}  // namespace shardproof::sim::relations
