#include "model/saved_config.h"

#include "base/error.h"
#include "model/config.h"

namespace shardproof {
namespace {

const char* torch_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return "float64";
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      break;
  }
  SHARDPROOF_ASSERT(false, "weights are stored in a floating-point dtype");
  return "";
}

// The architecture of the decoder alone.
Architecture text_architecture(const std::string& family) {
  for (const Architecture& known : known_architectures()) {
    if (family == known.family && !known.text_inside) return known;
  }
  SHARDPROOF_ASSERT(false, "every family has a decoder alone");
  return {};
}

}  // namespace

nlohmann::json saved_config(const nlohmann::json& config, at::ScalarType dtype) {
  const ModelConfig model = ModelConfig::from_json(config);
  const Architecture architecture = text_architecture(model.family);
  nlohmann::json saved = config.contains("text_config") ? config["text_config"] : config;
  saved["architectures"] = {architecture.name};
  saved["model_type"] = architecture.model_type;
  saved["tie_word_embeddings"] = model.tie_word_embeddings;
  saved["torch_dtype"] = torch_name(dtype);
  saved.erase("dtype");
  return saved;
}

}  // namespace shardproof
