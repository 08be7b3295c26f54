// One row of the option table. The row names the option once: its key in a scenario file, its
// member of the case, its type, range and default, its flag, its documentation, and whether the
// golden depends on it. Reading, JSON, flags, replays, the golden's key, the JSON Schema and the
// table of keys are generated from the rows.
//
//   const OptionRows<FsdpSpec>& rows_of(const FsdpSpec&) {
//     static const OptionRows<FsdpSpec> rows = {
//         row<&FsdpSpec::prefetch>("parallel.fsdp.prefetch", "Gather the next layer .."), ..};
//     return rows;
//   }
//
// The member gives the type, the default and the name in a case's JSON. The rows of each struct are
// in sim/case/*_rows.cpp; sim/case/row.h has `row` and the functions beside it.
#pragma once

#include <concepts>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::sim {

enum class KeyType {
  kText,
  kInteger,
  kNumber,
  kBool,
  kName,        // one of `choices`
  kNames,       // one of `choices`, or a list of them
  kIntegers,    // a list
  kTexts,       // a list
  kNumberPair,  // a list of two
  kMap,         // free keys, checked by the code that reads them
  kRecords,     // a list of maps; their keys are in the table as "faults[].kind"
  kNone,        // no key: a struct, or constants of a map
};

// Whether the single-device answer changes with an option. kOwnKey: it changes with what golden_key
// makes of this option and others.
enum class Golden { kDepends, kIgnores, kOwnKey };

// The flag by which a command on a case folder sets an option.
struct Flag {
  const char* names = "";  // "--microbatch,--micro-batch"; "" none. Replays use the first
  // kEveryCommand: judge and golden take it too.
  enum class Of { kCheck, kEveryCommand } of = Of::kCheck;
  // kWhenGiven: the flag replaces a value of a file, and the case does not show which it was.
  enum class Replay { kWhenSet, kWhenGiven, kNever } replay = Replay::kWhenSet;
};

// A setting that an option needs in order to have an effect. Of an attribute of records,
// "run.stages[].do", it is that of the same record.
struct Needed {
  std::string path;
  nlohmann::json value;              // null: a number above 1
  std::optional<double> above = {};  // any number above it, of which `value` is one

  bool takes_numbers() const { return value.is_null() || above; }
  bool holds(const nlohmann::json& given) const {
    if (takes_numbers()) return given.is_number() && given > above.value_or(1);
    return given == value;
  }
};
using Way = std::vector<Needed>;  // all of them

// The properties of an option that do not depend on its struct.
struct Option {
  std::string path = {};  // key in a scenario file: "parallel.tensor_parallel_size"; "": none
  KeyType type = KeyType::kText;
  nlohmann::json default_value = nullptr;  // null: none
  std::string doc = {};
  double low = 0, high = 0;  // of numbers, and of each number of a list
  std::vector<std::string> choices = {};
  bool nullable = false;        // `null` is allowed and has its own meaning
  std::string short_name = {};  // in the names of swept cases; "": the last part of the path
  std::vector<std::string> of_bool = {};  // kName: the choices for false and true
  Golden golden = Golden::kDepends;
  Flag flag = {};
  std::vector<Way> needs = {};  // the ways in which it can have an effect; none: it always has one
  std::vector<std::string> backends = {};  // the worlds in which it has an effect; none: all
  bool only_allows = false;     // it allows what need not occur: not to use it is not a mistake
  std::string not_drawn = {};   // why `fuzz` draws no values of it; "": it does
  std::string not_paired = {};  // why its values need not be combined with those of others; ""

  bool has_range() const { return low != high; }
  bool is_in_range(double number) const {  // NaN is in none
    return !has_range() || (number >= low && number <= high);
  }

  // "--microbatch"; "" without a flag.
  std::string flag_name() const {
    const std::string names = flag.names;
    return names.substr(0, names.find(','));
  }
};

// The part of a case to write: all of it, or what the golden depends on.
enum class Extent { kAll, kGolden };

template <class Spec>
struct OptionRow : Option {
  std::string member = {};  // name in the JSON of Spec; "": a key without its own member
  // Null when the value is not one member; then the builder of the case reads the key.
  std::function<nlohmann::json(const Spec&, Extent)> get = nullptr;
  std::function<void(Spec&, const nlohmann::json&)> set = nullptr;
  std::vector<OptionRow> inside = {};  // rows of a struct, or of the items of a list of structs

  // A member of a base is one of the derived struct too.
  template <std::derived_from<Spec> Derived>
  operator OptionRow<Derived>() const {
    OptionRow<Derived> made{static_cast<const Option&>(*this), member, get, set};
    made.inside.assign(inside.begin(), inside.end());
    return made;
  }
};
template <class Spec>
using OptionRows = std::vector<OptionRow<Spec>>;

// The rows of each struct, in the order of the table of keys.
const OptionRows<CaseSpec>& rows_of(const CaseSpec&);
const OptionRows<DataSpec>& rows_of(const DataSpec&);
const OptionRows<BatchingSpec>& rows_of(const BatchingSpec&);
const OptionRows<LossSpec>& rows_of(const LossSpec&);
const OptionRows<SideLossOptions>& rows_of(const SideLossOptions&);
const OptionRows<BiasRule>& rows_of(const BiasRule&);
const OptionRows<CapacityRule>& rows_of(const CapacityRule&);
const OptionRows<LossScaleOptions>& rows_of(const LossScaleOptions&);
const OptionRows<OptimizerSpec>& rows_of(const OptimizerSpec&);
const OptionRows<SchedulerSpec>& rows_of(const SchedulerSpec&);
const OptionRows<ParallelSpec>& rows_of(const ParallelSpec&);
const OptionRows<PipelineSpec>& rows_of(const PipelineSpec&);
const OptionRows<FsdpSpec>& rows_of(const FsdpSpec&);
const OptionRows<StageSpec>& rows_of(const StageSpec&);
const OptionRows<ReferenceSpec>& rows_of(const ReferenceSpec&);
const OptionRows<WorldSpec>& rows_of(const WorldSpec&);
const OptionRows<LinkSpec>& rows_of(const LinkSpec&);
const OptionRows<StragglerSpec>& rows_of(const StragglerSpec&);
const OptionRows<FaultSpec>& rows_of(const FaultSpec&);
const OptionRows<ExpectSpec>& rows_of(const ExpectSpec&);
// The keys of `model`, which go into the config.json that a scenario describes.
OptionRows<CaseSpec> model_keys();

// Every option of a case, with blocks flattened: `get` and `set` take the whole case, and `member`
// is "parallel.fsdp.prefetch". Keys of list items ("faults[].kind") have no `get` and `set`.
using CaseOption = OptionRow<CaseSpec>;
const std::vector<CaseOption>& case_options();

// Bounds that several options share.
constexpr double kMaxSize = 1e7;  // of one dimension of a model or batch
constexpr double kMaxSeconds = 1e6;
constexpr double kMaxConstant = 1e6;  // of a loss or an optimizer
constexpr double kMaxSeed = 9e15;     // exact in a double, so in every reader of JSON
constexpr double kMaxRanks = static_cast<double>(Mesh::kMaxWorldSize);
// The most steps that a scheduler may count; exact in a double.
constexpr double kManySteps = 9e15;

}  // namespace shardproof::sim
