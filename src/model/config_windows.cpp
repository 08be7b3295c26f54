#include "model/config_windows.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardproof {
namespace {

using Json = nlohmann::json;

// Which layers have a sliding window, from the list in config.json.
std::vector<bool> read_layer_types(const ConfigFields& config, int64_t layers) {
  const Json& types = *config.find("layer_types");
  if (!types.is_array()) config.wrong_type("layer_types", types, "a list of names");
  if (static_cast<int64_t>(types.size()) != layers) {
    config.bad(
        {"layer_types", "num_hidden_layers"},
        fmt::format("layer_types names {} layers, num_hidden_layers is {}", types.size(), layers),
        "name every layer once");
  }
  std::vector<bool> sliding;
  for (const Json& type : types) {
    if (!type.is_string()) config.wrong_type("layer_types", types, "a list of names");
    config.refuse_unknown("layer_types", "layer type", type.get<std::string>(),
                          {"full_attention", "sliding_attention"});
    sliding.push_back(type == "sliding_attention");
  }
  return sliding;
}

std::vector<bool> sliding_layers_by_rule(const ConfigFields& config, const ModelConfig& model) {
  const WindowRule rule = model.traits().window;
  const bool last = rule == WindowRule::kLastLayers;
  const int64_t from = last ? config.integer_or("max_window_layers", 28) : 0;
  const int64_t every = rule == WindowRule::kInTurn ? 2
                        : last                      ? 0
                                                    : config.size_or("sliding_window_pattern", 6);
  std::vector<bool> sliding;
  for (int64_t layer = 0; layer < model.num_hidden_layers; ++layer) {
    sliding.push_back(last ? layer >= from : (layer + 1) % every != 0);
  }
  return sliding;
}

}  // namespace

void read_windows(const ConfigFields& config, ModelConfig& model) {
  const WindowRule rule = model.traits().window;
  const bool whole = config.is_null("sliding_window");
  if (rule == WindowRule::kNone) {
    if (!config.has("layer_types")) return;
    const auto sliding = read_layer_types(config, model.num_hidden_layers);
    if (std::find(sliding.begin(), sliding.end(), true) == sliding.end()) return;
    config.refuse({"layer_types"},
                  fmt::format("layer_types has sliding layers, and {} has none", model.family),
                  "remove it, or name the family that is meant");
  }
  const bool used =
      rule != WindowRule::kLastLayers || config.flag_or("use_sliding_window", /*otherwise=*/false);
  if (rule == WindowRule::kInTurn && whole) {
    config.bad({"sliding_window"}, "sliding_window is null, but layers have sliding windows",
               "give the number of keys that a query sees");
  }
  const bool windowed = used && !whole;
  const bool listed = config.has("layer_types");
  if (listed) model.sliding_layers = read_layer_types(config, model.num_hidden_layers);
  if (!windowed) {
    if (model.has_sliding_layers()) {
      config.bad({"layer_types", "sliding_window"},
                 "layer_types has sliding layers, but there is no sliding window",
                 rule != WindowRule::kLastLayers ? "give sliding_window"
                                                 : "set use_sliding_window and sliding_window");
    }
    return;
  }
  model.sliding_window = config.size_or("sliding_window", rule == WindowRule::kInTurn ? 128 : 4096);
  if (!listed) model.sliding_layers = sliding_layers_by_rule(config, model);
}

}  // namespace shardproof
