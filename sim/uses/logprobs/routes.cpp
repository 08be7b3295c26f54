#include "sim/uses/logprobs/routes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "sim/uses/logprobs/causes.h"
#include "sim/uses/logprobs/claim.h"
#include "sim/uses/logprobs/signs.h"
#include "tensor/safetensors_reader.h"

namespace shardproof::sim::logprobs {
namespace {

constexpr const char* kRoutes = "routes";
constexpr std::string_view kFiles = ".safetensors", kRouteFiles = ".routes.safetensors";
constexpr int64_t kFarthestRule = 2;
// A rule is named where it gives so many of the routes, and equality at most so many.
constexpr double kMostOfRule = 0.9, kFewEqual = 0.6;
constexpr int64_t kMostPositions = 4096;  // that a rule is tried on, in each layer

// Routes [L, B, S, K] of one file, the ids of each position ascending.
struct File {
  std::vector<int64_t> shape;
  std::vector<int64_t> layers;  // their numbers
  std::vector<int32_t> ids;

  int64_t layer_count() const { return shape[0]; }
  size_t chosen() const { return static_cast<size_t>(shape[3]); }
  const int32_t* at(int64_t layer, int64_t position) const {
    return ids.data() + (layer * shape[1] * shape[2] + position) * shape[3];
  }
  bool has(int64_t layer, int64_t position) const {
    return *(at(layer, position) + shape[3] - 1) >= 0;
  }
};

std::vector<int64_t> read_layers(const SafetensorsReader& file, int64_t count) {
  std::vector<int64_t> layers;
  const auto found = file.metadata().find("layers");
  if (found == file.metadata().end()) {
    for (int64_t layer = 0; layer < count; ++layer) layers.push_back(layer);
    return layers;
  }
  const std::string& text = found->second;
  const char *at = text.data(), *end = text.data() + text.size();
  while (at != end) {
    int64_t layer = -1;
    const auto [next, error] = std::from_chars(at, end, layer);
    const bool is_last = next == end;
    const bool is_number = error == std::errc() && layer >= 0 && (is_last || *next == ',');
    if (!is_number || (!layers.empty() && layer <= layers.back())) break;
    layers.push_back(layer);
    at = is_last ? end : next + 1;
  }
  if (at != end || std::ssize(layers) != count || text.ends_with(',')) {
    throw_bad_input(
        fmt::format("{}: metadata layers is '{}', and routes has {} layers", file.path(), text,
                    count),
        "write the number of each layer that has a router, ascending, such as \"1,2,3\"");
  }
  return layers;
}

// The ids at one position of one layer, ascending. -1 is none; where the position counts, no expert
// stands there twice.
void check_experts(const File& file, const std::string& path, int64_t layer, int64_t position,
                   bool counts) {
  const int32_t *ids = file.at(layer, position), *end = ids + file.chosen();
  const auto twice =
      std::adjacent_find(ids, end, [](int32_t a, int32_t b) { return a == b && a >= 0; });
  const bool is_below = *ids < -1;
  if (!is_below && (!counts || twice == end)) return;
  throw_bad_input(
      fmt::format("{}: routes of layer {}, row {}, position {} have {}", path, file.layers[layer],
                  position / file.shape[2], position % file.shape[2],
                  is_below ? fmt::format("the expert {}", *ids)
                           : fmt::format("the expert {} twice", *twice)),
      "write the ids of experts, from 0, each once, and -1 where there is none");
}

File read_file(const std::string& path, int64_t rows, int64_t length,
               const std::vector<char>& counts) {
  const SafetensorsReader file = SafetensorsReader::open(path);
  const TensorView& tensor = file.view(kRoutes);
  const bool fits =
      tensor.dim() == 4 && tensor.size(1) == rows && tensor.size(2) == length && tensor.numel() > 0;
  if (!fits) {
    throw_bad_input(fmt::format("{}: routes has the shape [{}], and logprobs [{}, {}]", path,
                                fmt::join(tensor.sizes(), ", "), rows, length),
                    "write routes as [layers, B, S, K] of the same batch");
  }
  if (is_floating(tensor.dtype()) || tensor.dtype() == Dtype::kBool) {
    throw_bad_input(fmt::format("{}: routes is {}", path, dtype_name(tensor.dtype())),
                    "write the ids of experts as integers");
  }
  File out{tensor.sizes(), read_layers(file, tensor.size(0)), values_as<int32_t>(tensor)};
  const auto chosen = static_cast<int64_t>(out.chosen());
  if (tensor.dtype() == Dtype::kInt64 &&
      !std::equal(out.ids.begin(), out.ids.end(), tensor.data<int64_t>())) {
    throw_bad_input(fmt::format("{}: routes has ids of experts that no int32 holds", path),
                    "write the ids of experts, from 0");
  }
  for (auto ids = out.ids.begin(); ids != out.ids.end(); ids += chosen) {
    if (!std::is_sorted(ids, ids + chosen)) std::sort(ids, ids + chosen);
  }
  for (int64_t layer = 0; layer < out.layer_count(); ++layer) {
    for (int64_t position = 0; position < rows * length; ++position) {
      check_experts(out, path, layer, position, counts[position] != 0);
    }
  }
  return out;
}

// The share of positions whose routes in B are those of A at another layer or position; -1 where
// few positions can show it. place(layer, position) gives both, or a layer of -1.
template <class PlaceOf>
double share_of_rule(const File& a, const File& b, const PlaceOf& place) {
  const int64_t positions = a.shape[1] * a.shape[2];
  const int64_t step = std::max<int64_t>(1, positions / kMostPositions);
  int64_t tried = 0, equal = 0, all = 0;
  for (int64_t layer = 0; layer < b.layer_count(); ++layer) {
    for (int64_t position = 0; position < positions; position += step) {
      if (!b.has(layer, position)) continue;
      ++all;
      const auto [other, from] = place(layer, position);
      if (other < 0 || !a.has(other, from)) continue;
      ++tried;
      equal +=
          std::equal(b.at(layer, position), b.at(layer, position) + b.chosen(), a.at(other, from));
    }
  }
  if (2 * tried < all || tried == 0) return -1;
  return static_cast<double>(equal) / static_cast<double>(tried);
}

std::string rule_of(const File& a, const File& b) {
  using Place = std::pair<int64_t, int64_t>;
  const int64_t rows = a.shape[1], length = a.shape[2], layers = a.layer_count();
  const double equal =
      share_of_rule(a, b, [](int64_t layer, int64_t position) { return Place(layer, position); });
  if (equal < 0 || equal > kFewEqual) return "";
  double best = kMostOfRule;
  std::string text;
  const auto offer = [&](const std::string& rule, const auto& place) {
    const double share = share_of_rule(a, b, place);
    if (share < best) return;
    best = share;
    text = fmt::format("{} in {:.4g}% of the routes; {:.4g}% are equal in their own places", rule,
                       100 * share, 100 * equal);
  };
  for (int64_t k = -kFarthestRule; k <= kFarthestRule; ++k) {
    if (k == 0) continue;
    offer(fmt::format("B at position t has A's routes of t {} {}", k > 0 ? '+' : '-', std::abs(k)),
          [&](int64_t layer, int64_t position) {
            const int64_t from = position % length + k;
            return Place(from < 0 || from >= length ? -1 : layer, position + k);
          });
    offer(fmt::format("each router of B has the routes of A's router {} {}", std::abs(k),
                      k > 0 ? "after it" : "before it"),
          [&](int64_t layer, int64_t position) {
            const int64_t other = layer + k;
            return Place(other < layers ? other : -1, position);
          });
  }
  offer("B holds A's routes sequence first, [S, B] in place of [B, S],",
        [&](int64_t layer, int64_t position) {
          return Place(layer, position % rows * length + position / rows);
        });
  offer("A holds B's routes sequence first, [S, B] in place of [B, S],",
        [&](int64_t layer, int64_t position) {
          return Place(layer, position % length * rows + position / length);
        });
  return text;
}

Routes compare_files(const File& a, const File& b, const std::vector<char>& counts) {
  Routes out{.only = {},
             .layers = a.layer_count(),
             .in_layers = {},
             .first = {},
             .is_elsewhere = {},
             .rule = rule_of(a, b)};
  const auto positions = std::ssize(counts);
  const int64_t length = a.shape[2];
  std::vector<char> is_compared(counts.size());
  std::vector<int64_t> first_layer(counts.size(), -1);
  out.is_elsewhere.assign(counts.size(), 0);
  for (int64_t layer = 0; layer < a.layer_count(); ++layer) {
    bool differs = false;
    for (int64_t position = 0; position < positions; ++position) {
      if (counts[position] == 0 || !a.has(layer, position) || !b.has(layer, position)) continue;
      is_compared[position] = 1;
      if (std::equal(a.at(layer, position), a.at(layer, position) + a.chosen(),
                     b.at(layer, position))) {
        continue;
      }
      differs = true;
      if (first_layer[position] < 0) first_layer[position] = layer;
    }
    if (differs) out.in_layers.push_back(a.layers[layer]);
  }
  for (int64_t position = 0; position < positions; ++position) {
    out.compared += is_compared[position];
    const int64_t layer = first_layer[position];
    if (layer < 0) continue;
    out.is_elsewhere[position] = 1;
    if (++out.elsewhere > 1) continue;
    const auto ids_of = [&](const File& file) {
      const int32_t* ids = file.at(layer, position);
      return std::vector<int64_t>(ids, ids + file.chosen());
    };
    out.first =
        Reroute{position / length, position % length, a.layers[layer], ids_of(a), ids_of(b)};
  }
  return out;
}

// The number of routers that sent a token elsewhere says nothing of the logprobs' dtype.
std::string class_text(const char* what, const RouteClass& one) {
  if (one.tokens == 0) return fmt::format("{} 0", what);
  return fmt::format("{} {}, mean {:.3g}, largest {:.3g}", what, one.tokens, one.mean, one.largest);
}

}  // namespace

std::string routes_path(const std::string& logprobs_path) {
  const bool is_named = logprobs_path.ends_with(kFiles);
  return logprobs_path.substr(0, logprobs_path.size() - (is_named ? kFiles.size() : 0)) +
         std::string(kRouteFiles);
}

bool is_routes_file(const std::string& path) { return path.ends_with(kRouteFiles); }

std::optional<Routes> read_routes(const std::string& path_a, const std::string& path_b,
                                  int64_t rows, int64_t length, const std::vector<char>& counts) {
  const std::string files[] = {routes_path(path_a), routes_path(path_b)};
  std::error_code no_such_name;  // too long with this ending
  const bool has_a = std::filesystem::exists(files[0], no_such_name),
             has_b = std::filesystem::exists(files[1], no_such_name);
  if (!has_a && !has_b) return std::nullopt;
  if (has_a != has_b) {
    Routes out;
    out.only = fmt::format("{} alone has routes ({}), so they are not compared", has_a ? "A" : "B",
                           files[has_a ? 0 : 1]);
    return out;
  }
  const File a = read_file(files[0], rows, length, counts),
             b = read_file(files[1], rows, length, counts);
  if (a.shape != b.shape || a.layers != b.layers) {
    throw_bad_input(
        fmt::format("routes of {} are [{}] of the layers {}, and those of {} [{}] of the layers {}",
                    files[0], fmt::join(a.shape, ", "), fmt::join(a.layers, ","), files[1],
                    fmt::join(b.shape, ", "), fmt::join(b.layers, ",")),
        "record the routes of the same layers and of as many experts for each token");
  }
  return compare_files(a, b, counts);
}

std::vector<char> classes_of_tokens(const Comparison& comparison, const Routes& routes) {
  const Pair& pair = comparison.pair;
  std::vector<char> classes;
  // The first position with other routes in each segment that was met last.
  int64_t row = -1, segment = -1, begin = 0, first = -1;
  for (const Token& token : pair.tokens) {
    if (token.row != row || token.segment != segment) {
      row = token.row;
      segment = token.segment;
      begin = token.position - token.in_segment;
      first = -1;
      for (int64_t position = begin; position < pair.length && first < 0; ++position) {
        const int64_t i = pair.at(row, position);
        if (pair.segment[i] != pair.segment[pair.at(row, begin)]) break;
        if (routes.is_elsewhere[i] != 0) first = position;
      }
    }
    const int64_t source = token.position - 1;
    const bool is_elsewhere =
        source >= begin && routes.is_elsewhere[pair.at(token.row, source)] != 0;
    const bool is_behind = first >= 0 && first < source;
    classes.push_back(is_elsewhere ? 2 : is_behind ? 1 : 0);
  }
  return classes;
}

RouteSplit split_by_routes(const Comparison& comparison, const Routes& routes) {
  const std::vector<char> classes = classes_of_tokens(comparison, routes);
  RouteSplit split;
  RouteClass* const all[] = {&split.equal, &split.behind, &split.elsewhere};
  for (size_t kind = 0; kind < 3; ++kind) {
    RouteClass& one = *all[kind];
    std::vector<double> remaining(classes.size(), NAN);
    for (size_t i = 0; i < classes.size(); ++i) {
      if (classes[i] != static_cast<char>(kind)) continue;
      remaining[i] = comparison.differences[i];
      const double size = std::abs(comparison.differences[i]);
      ++one.tokens;
      one.mean += size;
      one.largest = std::max(one.largest, size);
    }
    if (one.tokens > 0) one.mean /= static_cast<double>(one.tokens);
    one.is_noise = comparison.is_noise(remaining);
  }
  return split;
}

std::string routes_text(const Routes& routes) {
  if (!routes.only.empty()) return routes.only;
  if (routes.compared == 0) return "no position has routes in both files";
  if (!routes.first) {
    return fmt::format("all {} positions have equal routes in {} layer{}", routes.compared,
                       routes.layers, routes.layers == 1 ? "" : "s");
  }
  constexpr size_t kListed = 8;
  const Reroute& first = *routes.first;
  const size_t shown = std::min(routes.in_layers.size(), kListed);
  std::string text = fmt::format(
      "{} of {} positions were routed elsewhere, in {} of {} layers ({}{}); the first is row {}, "
      "position {}, layer {}: A chose the experts {}, B {}",
      routes.elsewhere, routes.compared, routes.in_layers.size(), routes.layers,
      fmt::join(routes.in_layers.begin(), routes.in_layers.begin() + shown, ", "),
      shown < routes.in_layers.size() ? ", .." : "", first.row, first.position, first.layer,
      fmt::join(first.from_a, ", "), fmt::join(first.from_b, ", "));
  return routes.rule.empty() ? text : text + "; " + routes.rule;
}

std::string split_text(const RouteSplit& split) {
  return fmt::format("|B - A| of tokens {}; {}; {}",
                     class_text("scored from these positions:", split.elsewhere),
                     class_text("behind them in their sequence:", split.behind),
                     class_text("of equal routes:", split.equal));
}

}  // namespace shardproof::sim::logprobs
