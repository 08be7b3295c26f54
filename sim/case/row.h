// Rows of the option table from pointers to members, for sim/case/*_rows.cpp.
#pragma once

#include <initializer_list>
#include <string_view>
#include <type_traits>
#include <utility>

#include "sim/case/option.h"

namespace shardproof::sim {

// The properties of a row besides its path, doc and member.
struct Range {
  double low, high;
};
struct ShortName {
  const char* text;
};
struct Choices {
  std::vector<std::string> names;
};
struct OfBool {  // the choices for false and true
  const char *when_false, *when_true;
};
struct Needs {  // one of the ways, for the option to have an effect
  std::vector<Way> ways;
};
struct Backends {  // in whose worlds the option has an effect
  std::vector<std::string> names;
};
struct NotDrawn {  // nor paired
  const char* reason;
};
struct NotPaired {
  const char* reason;
};
enum class Default { kFollows };  // without the key, the value follows from other options
enum class Null { kAllowed };
enum class Effect { kOnlyAllows };

inline void add_to(Option& option, Range range) {
  option.low = range.low;
  option.high = range.high;
}
inline void add_to(Option& option, ShortName name) { option.short_name = name.text; }
inline void add_to(Option& option, const Choices& choices) {
  option.choices = choices.names;
  option.type = option.type == KeyType::kTexts ? KeyType::kNames : KeyType::kName;
}
inline void add_to(Option& option, OfBool names) {
  option.of_bool = {names.when_false, names.when_true};
}
inline void add_to(Option& option, const Needs& needs) { option.needs = needs.ways; }
inline void add_to(Option& option, const Backends& of) { option.backends = of.names; }
inline void add_to(Option& option, NotDrawn why) {
  option.not_drawn = option.not_paired = why.reason;
}
inline void add_to(Option& option, NotPaired why) { option.not_paired = why.reason; }
inline void add_to(Option& option, Default) { option.default_value = nullptr; }
inline void add_to(Option& option, Null) { option.nullable = true; }
inline void add_to(Option& option, Effect) { option.only_allows = true; }
inline void add_to(Option& option, Golden golden) { option.golden = golden; }
inline void add_to(Option& option, Flag flag) { option.flag = flag; }

// --- Values: the type of a member's key, and a member as JSON
template <class Type>
struct ItemOf {
  using type = void;
};
template <class Item>
struct ItemOf<std::vector<Item>> {
  using type = Item;
};
template <class Type>
using item_of = typename ItemOf<Type>::type;
// The spec structs are the only aggregates among the members.
template <class Type>
constexpr bool is_spec = std::is_aggregate_v<Type>;
template <class Type>
constexpr bool is_list_of_specs = is_spec<item_of<Type>>;

template <class Type>
constexpr KeyType type_of() {
  if constexpr (std::is_same_v<Type, bool>) return KeyType::kBool;
  if constexpr (std::is_same_v<Type, int64_t>) return KeyType::kInteger;
  if constexpr (std::is_same_v<Type, double>) return KeyType::kNumber;
  if constexpr (std::is_same_v<Type, std::vector<int64_t>>) return KeyType::kIntegers;
  if constexpr (std::is_same_v<Type, std::vector<std::string>>) return KeyType::kTexts;
  if constexpr (std::is_same_v<Type, nlohmann::json>) return KeyType::kMap;
  if constexpr (is_list_of_specs<Type>) return KeyType::kRecords;
  if constexpr (std::is_same_v<Type, std::string>) return KeyType::kText;
  if constexpr (NamedEnum<Type>) return KeyType::kName;
  return KeyType::kNone;
}

template <class Type>
nlohmann::json value_of(const Type& member, Extent extent) {
  if constexpr (is_spec<Type>) {
    nlohmann::json object = nlohmann::json::object();
    for (const OptionRow<Type>& row : rows_of(member)) {
      const bool wanted = extent == Extent::kAll || row.golden == Golden::kDepends;
      if (!row.member.empty() && wanted) object[row.member] = row.get(member, extent);
    }
    return object;
  } else if constexpr (is_list_of_specs<Type>) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& item : member) list.push_back(value_of(item, extent));
    return list;
  } else {
    return member;
  }
}

template <class Type>
void read_value(Type& member, const nlohmann::json& value) {
  if constexpr (is_spec<Type>) {
    for (const OptionRow<Type>& row : rows_of(member)) {
      if (!row.member.empty()) row.set(member, value.at(row.member));
    }
  } else if constexpr (is_list_of_specs<Type>) {
    member.clear();
    for (const nlohmann::json& item : value) read_value(member.emplace_back(), item);
  } else {
    member = value.get<Type>();
  }
}

// --- Rows
// "prefetch" of &FsdpSpec::prefetch, in the compiler's spelling.
template <auto Member>
constexpr std::string_view name_of_member() {
  std::string_view text = __PRETTY_FUNCTION__;
  text = text.substr(text.find("Member = "));
  text = text.substr(0, text.find_first_of(";]"));
  return text.substr(text.rfind(':') + 1);
}
static_assert(name_of_member<&LinkSpec::gb_per_s>() == "gb_per_s");

// The row of an inner struct as an option of the outer struct.
template <class Outer, class Inner>
OptionRow<Outer> lifted(const OptionRow<Inner>& row, Inner Outer::*block, const std::string& name) {
  OptionRow<Outer> out{static_cast<const Option&>(row)};
  if (!row.member.empty()) out.member = name + "." + row.member;
  if (row.get) {
    out.get = [get = row.get, block](const Outer& s, Extent e) { return get(s.*block, e); };
    out.set = [set = row.set, block](Outer& s, const nlohmann::json& v) { set(s.*block, v); };
  }
  for (const OptionRow<Inner>& inner : row.inside) out.inside.push_back(lifted(inner, block, name));
  return out;
}

template <class Spec>
void ignore_inside(OptionRow<Spec>& row) {
  for (OptionRow<Spec>& inner : row.inside) {
    if (inner.golden != Golden::kOwnKey) inner.golden = Golden::kIgnores;
    ignore_inside(inner);
  }
}

// Instantiated for each struct and type, not for each of the many members.
template <class Spec, class Type>
OptionRow<Spec> row_of(Type Spec::*member, std::string_view name, const char* path,
                       const char* doc) {
  OptionRow<Spec> made;
  made.path = path;
  made.type = type_of<Type>();
  made.doc = doc;
  made.member = name;
  made.get = [member](const Spec& spec, Extent extent) { return value_of(spec.*member, extent); };
  made.set = [member](Spec& spec, const nlohmann::json& v) { read_value(spec.*member, v); };
  if constexpr (is_spec<Type>) {
    for (const OptionRow<Type>& inner : rows_of(Type{})) {
      made.inside.push_back(lifted(inner, member, made.member));
    }
  } else {
    made.default_value = made.get(Spec{}, Extent::kAll);
  }
  if constexpr (NamedEnum<Type>) made.choices = all_names<Type>();
  if constexpr (is_list_of_specs<Type>) {
    for (const auto& item : rows_of(item_of<Type>{})) {
      if (!item.path.empty()) made.inside.push_back({static_cast<const Option&>(item)});
    }
  }
  return made;
}

template <class Spec, class... About>
OptionRow<Spec> with(OptionRow<Spec> row, const About&... about) {
  (add_to(row, about), ...);
  if (row.golden == Golden::kIgnores) ignore_inside(row);
  return row;
}

// A key and the member that it sets.
template <auto Member, class... About>
auto row(const char* path, const char* doc, const About&... about) {
  return with(row_of(Member, name_of_member<Member>(), path, doc), about...);
}

// A member without a key, or a struct whose rows are included.
template <auto Member, class... About>
auto member(const About&... about) {
  return row<Member>("", "", about...);
}

// A key of a member of an inner struct, where two members have the same struct type.
template <auto Block, auto Member, class... About>
auto row(const char* path, const char* doc, const About&... about) {
  auto made = lifted(row<Member>(path, doc, about...), Block, "");
  made.member = "";
  return made;
}

// The rows of several lists.
template <class Spec>
OptionRows<Spec> joined(std::initializer_list<OptionRows<Spec>> lists) {
  OptionRows<Spec> rows;
  for (const OptionRows<Spec>& list : lists) rows.insert(rows.end(), list.begin(), list.end());
  return rows;
}

// A key without its own member; the builder of the case reads it.
template <class Spec, class... About>
OptionRow<Spec> key(const char* path, KeyType type, nlohmann::json default_value, const char* doc,
                    const About&... about) {
  OptionRow<Spec> made;
  made.path = path;
  made.type = type;
  made.default_value = std::move(default_value);
  made.doc = doc;
  return with(std::move(made), about...);
}

}  // namespace shardproof::sim
