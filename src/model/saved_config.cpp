#include "model/saved_config.h"

#include "base/error.h"
#include "model/config.h"
#include "tensor/dtype_name.h"

namespace shardproof {
namespace {

// The architecture whose config describes only the decoder.
Architecture text_architecture(const std::string& family) {
  for (const Architecture& known : known_architectures()) {
    if (family == known.family && !known.text_inside) return known;
  }
  SHARDPROOF_ASSERT(false, "every family has a decoder alone");
  return {};
}

}  // namespace

nlohmann::json saved_config(const nlohmann::json& config, at::ScalarType dtype) {
  SHARDPROOF_ASSERT(at::isFloatingType(dtype), "weights are stored in a floating-point dtype");
  const ModelConfig model = ModelConfig::from_json(config);
  const Architecture architecture = text_architecture(model.family);
  nlohmann::json saved = config.contains("text_config") ? config["text_config"] : config;
  saved["architectures"] = {architecture.name};
  saved["model_type"] = architecture.model_type;
  saved["tie_word_embeddings"] = model.tie_word_embeddings;
  saved["torch_dtype"] = dtype_name(dtype);
  saved.erase("dtype");
  return saved;
}

}  // namespace shardproof
