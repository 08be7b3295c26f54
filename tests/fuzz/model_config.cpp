// Tests the reader of a model's config.json with any text.
#include <cmath>

#include "base/read_text.h"
#include "model/config.h"
#include "tests/fuzz/promise.h"

namespace shardproof::fuzz {

Ending read_model_config(std::string_view bytes) {
  return value_or_sentence([&] {
    const nlohmann::json json = parse_json_object("config.json", std::string(bytes));
    const ModelConfig config = ModelConfig::from_json(json);
    for (const int64_t size :
         {config.vocab_size, config.hidden_size, config.intermediate_size, config.num_hidden_layers,
          config.num_attention_heads, config.num_key_value_heads, config.head_dim}) {
      promise(size >= 1, "a size of " + std::to_string(size));
    }
    promise(config.num_attention_heads % config.num_key_value_heads == 0,
            "heads that do not divide");
    promise(config.pad_token_id < config.vocab_size, "a padding token outside the vocabulary");
    promise(std::isfinite(config.rms_norm_eps) && config.rms_norm_eps > 0, "an eps of no use");
    promise(std::isfinite(config.rope_theta) && config.rope_theta > 0, "a rope base of no use");
  });
}

}  // namespace shardproof::fuzz
