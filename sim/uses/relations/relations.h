// Relations that hold for every model and need no golden: a case and a changed case whose values
// follow from one another. Each is a row of one of the tables in batch_relations.cpp,
// weight_relations.cpp, config_relations.cpp, stage_relations.cpp and expert_relations.cpp. To add
// one, add a row.
#pragma once

#include <string>
#include <vector>

#include "sim/uses/relations/variant.h"

namespace shardproof::sim::relations {

struct Relation {
  const char* name;
  const char* changed;  // what the changed case has: "the samples in reverse order"
  // Why the relation says nothing about the case; "" when it fits. Null: it fits every case.
  std::string (*why_not)(const CaseSpec& spec, const ModelConfig& config) = nullptr;
  // Changes the second of two equal variants; with `changes_first` the first one as well.
  void (*change)(Variant& first, Variant& second) = nullptr;
  // The weights that change afterwards, in the second variant.
  void (*change_weights)(const Variant& second, WeightMaps& maps) = nullptr;
  // Brings the values of the second run to those of the first, after the gradients of the weights
  // above. Tensors that say nothing leave both.
  void (*back)(const Variant& first, const Variant& second, Values& a, Values& b) = nullptr;
  bool same_norm = true;         // grad_norm is compared
  bool changes_first = false;    // the case itself is not a member of the pair
  bool exact = false;            // equal to the bit
  bool every_precision = false;  // not in float64 alone
  bool beside_experts = false;   // holds for layers with experts, too
  bool of_experts = false;       // holds whatever their routers are trained with
  bool beside_heads = false;     // holds for extra heads, too
};

// Whether each layer of both models has the same slots, and so weights of the same names.
bool have_equal_slots(const ModelConfig& a, const ModelConfig& b);

std::vector<Relation> batch_relations();
std::vector<Relation> weight_relations();
std::vector<Relation> config_relations();
std::vector<Relation> stage_relations();
std::vector<Relation> expert_relations();
const std::vector<Relation>& relations();

// Why a relation says nothing about a case; "" when it fits.
std::string why_not(const Relation& relation, const CaseSpec& spec);
std::string why_not_beside_experts(const Relation& relation, const CaseSpec& spec,
                                   const ModelConfig& config);

// The two cases of a relation, and the way back.
struct RelatedPair {
  Variant first, second;
  WeightMaps maps;
};
RelatedPair related_pair(const Relation& relation, const Variant& variant);
// Whether the change left spec, weights and batch as they were, so that it would show nothing.
bool is_unchanged(const Relation& relation, const RelatedPair& pair);
// Brings both to what is compared.
void bring_back(const Relation& relation, const RelatedPair& pair, Values& first, Values& second);

// Cases run with --relations: each model case once for each relation that fits, which its name
// tells. A case of which none says anything is there once, with kNoRelation and the reason as its
// `skip`, or with the scenario's own.
inline const std::string kNoRelation = "no relation says anything about it: ";
std::vector<CaseSpec> with_relations(const std::vector<CaseSpec>& cases);
// The relation in a name that with_relations made; null for others.
const Relation* relation_of(const std::string& name);
// "tp/llama[tp2]" of "tp/llama[tp2,relation=files]".
std::string name_without_relation(const std::string& name);

}  // namespace shardproof::sim::relations
