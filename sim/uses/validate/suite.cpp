#include "sim/uses/validate/suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "base/read_text.h"
#include "sim/case/scenario/yaml_tree.h"
#include "sim/uses/validate/groups.h"

namespace shardproof::sim::validate {

namespace {

constexpr int64_t kMaxSuiteBytes = 1 << 20;
constexpr int64_t kMany = int64_t{1} << 30;

// The values of one map, each read once; a key that nobody reads is an error.
class SuiteMap {
 public:
  SuiteMap(const std::string& file, const YamlNode& node, const std::string& what)
      : file_(file), node_(node) {
    if (node.kind == YamlNode::Kind::kNull) return;
    if (node.kind != YamlNode::Kind::kMap)
      fail(node, what + " is " + node.describe(), "write a map");
  }

  void integer(const std::string& key, int64_t& value, int64_t low, int64_t high) {
    with(key, [&](const YamlNode& node) { value = integer_of(key, node, low, high); });
  }
  void number(const std::string& key, double& value, double low, double high) {
    with(key, [&](const YamlNode& node) {
      const nlohmann::json json = node.value();
      const double read = json.is_number() ? json.get<double>() : NAN;
      if (!(read >= low && read <= high)) {
        fail(node, fmt::format("{} is {}", key, node.describe()),
             fmt::format("write a number from {:g} to {:g}", low, high));
      }
      value = read;
    });
  }
  template <NamedEnum Enum>
  void one_of(const std::string& key, Enum& value) {
    with(key, [&](const YamlNode& node) { value = enum_at<Enum>(node); });
  }
  template <NamedEnum Enum>
  void several(const std::string& key, std::vector<Enum>& values) {
    list(key, [&](const std::vector<YamlNode>& items) {
      values.clear();
      for (const YamlNode& item : items) {
        values.push_back(enum_at<Enum>(item));
        if (std::ranges::count(values, values.back()) > 1) {
          fail(item, fmt::format("{} holds {} twice", key, values.back()), "name each once");
        }
      }
    });
  }
  void integers(const std::string& key, std::vector<int64_t>& values, int64_t low, int64_t high) {
    list(key, [&](const std::vector<YamlNode>& items) {
      values.clear();
      for (const YamlNode& item : items) values.push_back(integer_of(key, item, low, high));
    });
  }
  void texts(const std::string& key, std::vector<std::string>& values) {
    list(key, [&](const std::vector<YamlNode>& items) {
      for (const YamlNode& item : items) {
        if (item.kind != YamlNode::Kind::kScalar) {
          fail(item, fmt::format("{} holds {}", key, item.describe()), "write texts");
        }
        values.push_back(item.text);
      }
    });
  }
  void list(const std::string& key, const std::function<void(const std::vector<YamlNode>&)>& read) {
    with(key, [&](const YamlNode& node) {
      const bool is_list = node.kind == YamlNode::Kind::kList;
      if (!is_list || node.items.empty()) {
        fail(node, fmt::format("{} is {}", key, is_list ? "an empty list" : node.describe()),
             "write a list of at least one value");
      }
      read(node.items);
    });
  }
  void with(const std::string& key, const std::function<void(const YamlNode&)>& read) {
    known_.push_back(key);
    if (const YamlNode* node = node_.find(key)) read(*node);
  }
  // Call it last.
  void no_others() const {
    for (const YamlEntry& entry : node_.entries) {
      if (std::ranges::find(known_, entry.key) != known_.end()) continue;
      const std::string nearest = nearest_name(entry.key, known_);
      fail_at(file_, entry.line, entry.column, fmt::format("'{}' is not a key here", entry.key),
              nearest.empty() ? fmt::format("known are {}", fmt::join(known_, ", "))
                              : fmt::format("did you mean {}?", nearest));
    }
  }
  [[noreturn]] void fail(const YamlNode& node, const std::string& what,
                         const std::string& fix) const {
    fail_at(file_, node.line, node.column, what, fix);
  }

 private:
  template <NamedEnum Enum>
  Enum enum_at(const YamlNode& node) const {
    const auto found =
        node.kind == YamlNode::Kind::kScalar ? find_enum<Enum>(node.text) : std::optional<Enum>();
    if (found) return *found;
    fail(node, fmt::format("'{}' is unknown", node.text),
         fmt::format("known are {}", fmt::join(all_names<Enum>(), ", ")));
  }
  int64_t integer_of(const std::string& key, const YamlNode& node, int64_t low,
                     int64_t high) const {
    const nlohmann::json json = node.value();
    const bool fits = json.is_number_integer() && json >= low && json <= high;
    if (!fits) {
      fail(node, fmt::format("{} is {}", key, node.text.empty() ? node.describe() : node.text),
           fmt::format("write an integer from {} to {}", low, high));
    }
    return json.get<int64_t>();
  }

  const std::string& file_;
  const YamlNode& node_;
  std::vector<std::string> known_;
};

// Keys that some kinds alone take.
void require_taken_keys(const SuiteMap& map, const YamlNode& node, PlantedKind kind) {
  using enum PlantedKind;
  static const std::map<std::string, std::set<PlantedKind>> takers = {
      {"pattern", {kCorrupt}},
      {"side", {kCorrupt}},
      {"first", {kCorrupt}},
      {"stride", {kCorrupt}},
      {"bit", {kCorrupt}},
      {"probability", {kCorrupt}},
      {"seconds", {kSlow, kClock, kLag}},
      {"at_call", {kKill, kHang, kCut, kLag}},
      {"heal_s", {kCut, kLag}}};
  for (const YamlEntry& entry : node.entries) {
    const auto found = takers.find(entry.key);
    if (found == takers.end() || found->second.contains(kind)) continue;
    map.fail(node, fmt::format("a {} fault does not take {}", kind, entry.key),
             fmt::format("leave it out, or plant one of {}", fmt::join(found->second, ", ")));
  }
}

PlantedFault read_fault(const std::string& file, const YamlNode& node) {
  PlantedFault fault;
  SuiteMap map(file, node, "a fault");
  if (node.find("kind") == nullptr) map.fail(node, "a fault has no kind", "write kind: corrupt");
  map.one_of("kind", fault.kind);
  map.integer("host", fault.host, 0, 65535);
  map.integer("rank", fault.rank, 0, 65535);
  map.integers("link", fault.link, 0, 65535);
  map.with("stage", [&](const YamlNode& stage) {
    if (!find_enum<Stage>(stage.text)) {
      map.fail(stage, fmt::format("'{}' is not a stage", stage.text),
               fmt::format("known are {}", fmt::join(all_names<Stage>(), ", ")));
    }
    fault.stage = stage.text;
  });
  map.one_of("pattern", fault.pattern);
  map.one_of("side", fault.side);
  map.integer("first", fault.first, 0, kMany);
  map.integer("stride", fault.stride, 2, kMany);
  map.integer("bit", fault.bit, 0, 63);
  map.number("probability", fault.probability, 0, 1);
  map.number("seconds", fault.seconds, -1e6, 1e6);
  map.integer("at_call", fault.at_call, 0, kMany);
  map.number("heal_s", fault.heal_s, 0, 1e6);
  map.no_others();
  require_taken_keys(map, node, fault.kind);
  const int named = (fault.host >= 0) + (fault.rank >= 0) + !fault.link.empty();
  if (named != 1 || (!fault.link.empty() && fault.link.size() != 2)) {
    map.fail(node, "a fault needs one of host, rank and link", "write host: 1, or link: [0, 1]");
  }
  if (fault.link.size() == 2 && fault.link[0] == fault.link[1]) {
    map.fail(node, fmt::format("host {} has no link to itself", fault.link[0]), "name two hosts");
  }
  if (fault.kind != PlantedKind::kClock && fault.seconds < 0) {
    map.fail(node, fmt::format("a {} fault of {:g} seconds", fault.kind, fault.seconds),
             "only a clock goes back: give 0 or more");
  }
  const bool at_link = fault.kind == PlantedKind::kCorrupt || fault.kind == PlantedKind::kSlow;
  if (!fault.link.empty() && !at_link) {
    map.fail(node, fmt::format("a {} fault does not act on a link", fault.kind),
             "name a host or a rank");
  }
  return fault;
}

void read_mesh(SuiteMap& map, const std::string& file, Suite& suite) {
  map.with("mesh", [&](const YamlNode& node) {
    SuiteMap axes(file, node, "mesh");
    for (const YamlEntry& entry : node.entries) {
      if (is_built_in_group(entry.key)) {
        axes.fail(node, fmt::format("'{}' is the name of a group that every suite has", entry.key),
                  "give the axis another name");
      }
      int64_t size = 1;
      axes.integer(entry.key, size, 1, 65536);
      suite.mesh.emplace_back(entry.key, size);
    }
  });
}

void read_maps(SuiteMap& map, const std::string& file, Suite& suite) {
  map.with("hosts", [&](const YamlNode& node) {
    SuiteMap hosts(file, node, "hosts");
    hosts.integer("ranks_per_host", suite.ranks_per_host, 1, 65536);
    hosts.no_others();
  });
  map.with("pairs", [&](const YamlNode& node) {
    SuiteMap pairs(file, node, "pairs");
    pairs.integer("rounds", suite.pair_rounds, 1, kMany);
    pairs.no_others();
  });
  map.with("times", [&](const YamlNode& node) {
    SuiteMap times(file, node, "times");
    times.integer("bytes", suite.times_bytes, 8, kMany);
    times.integer("repeats", suite.times_repeats, 1, 1000);
    times.no_others();
  });
  map.with("training", [&](const YamlNode& node) {
    SuiteMap training(file, node, "training");
    training.texts("scenarios", suite.scenarios);
    training.integer("rotations", suite.rotations, 1, 65536);
    training.no_others();
  });
  map.with("world", [&](const YamlNode& node) {
    SuiteMap world(file, node, "world");
    world.number("hang_s", suite.hang_s, 0.1, 1e6);
    world.number("deadline_s", suite.deadline_s, 1, 1e6);
    world.integer("nodes", suite.nodes, 1, 250);
    world.no_others();
  });
}

}  // namespace

bool Suite::has(Stage stage) const { return std::ranges::find(stages, stage) != stages.end(); }

Suite parse_suite(const std::string& file, const std::string& text) {
  const YamlNode root = parse_yaml(file, text);
  Suite suite;
  suite.file = file;
  SuiteMap map(file, root, "the suite");
  map.integer("seed", suite.seed, 0, int64_t{1} << 52);
  map.several("stages", suite.stages);
  map.integer("rounds", suite.rounds, 1, kMany);
  map.integers("sizes", suite.sizes, 1, 1 << 17);  // kMostElements of exchange.cpp
  map.several("ops", suite.ops);
  map.several("dtypes", suite.dtypes);
  read_mesh(map, file, suite);
  read_maps(map, file, suite);
  map.number("clock_limit_s", suite.clock_limit_s, 1e-3, 1e9);
  map.list("faults", [&](const std::vector<YamlNode>& items) {
    for (const YamlNode& item : items) suite.faults.push_back(read_fault(file, item));
  });
  map.no_others();
  for (const PlantedFault& fault : suite.faults) {
    const bool at_link = fault.kind == PlantedKind::kCut || fault.kind == PlantedKind::kLag;
    if (!at_link || suite.nodes > 0) continue;
    map.fail(
        root,
        fmt::format("the fault {} acts on the link of a node, and there are no nodes", fault.kind),
        "write world: {nodes: 2}");
  }
  return suite;
}

Suite read_suite(const std::string& path) {
  return parse_suite(path, read_text_file(path, kMaxSuiteBytes));
}

void check_fits(const Suite& suite, int64_t ranks, std::optional<int64_t> hosts) {
  int64_t size = 1;
  for (const auto& [axis, one] : suite.mesh) size *= one;
  if (!suite.mesh.empty() && size != ranks) {
    throw_bad_input(
        fmt::format("the mesh of {} is for {} ranks, there are {}", suite.file, size, ranks),
        "correct mesh, or leave it out");
  }
  for (const PlantedFault& fault : suite.faults) {
    int64_t most = fault.host;
    for (const int64_t host : fault.link) most = std::max(most, host);
    const bool unknown = hosts && most >= *hosts;
    if (!unknown && fault.rank < ranks) continue;
    throw_bad_input(fmt::format("a fault of {} is on {} {}, and there are {}", suite.file,
                                unknown ? "host" : "rank", unknown ? most : fault.rank,
                                unknown ? *hosts : ranks),
                    "count from 0, and name one that is there");
  }
}

}  // namespace shardproof::sim::validate
