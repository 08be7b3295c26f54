// What each reader of outside text promises about any input at all, checked: it ends by a value
// that holds together, or by one Error whose sentence can be shown. libFuzzer draws the inputs;
// those worth keeping are in corpus/ and run in every build (corpus_test.cpp).
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace shardproof::fuzz {

// Thrown where a reader does not keep its promise.
class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

enum class Ending { kRead, kRefused };

// A scenario file. What it says survives the way to the worker, as JSON text; its cases have names
// of their own.
Ending read_scenario(std::string_view bytes);

// A safetensors file's header: 8 bytes for the size of the data (little endian), then the JSON. The
// tensors cover the data, and the header made of them is read as the same.
Ending read_safetensors_header(std::string_view bytes);

// A model's config.json. Sizes are positive and heads divide.
Ending read_model_config(std::string_view bytes);

}  // namespace shardproof::fuzz
