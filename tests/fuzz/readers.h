// Checks the promise of each reader of outside text for any input: it returns a consistent value,
// or throws one Error with a printable sentence. libFuzzer draws the inputs; those worth keeping
// are in corpus/ and run in every build (corpus_test.cpp).
#pragma once

#include <stdexcept>
#include <string_view>

namespace shardproof::fuzz {

// Thrown when a reader breaks its promise.
class BrokenPromise : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

enum class Ending { kRead, kRefused };

// A scenario file. Its cases must survive the conversion to JSON text for a worker, and have unique
// names.
Ending read_scenario(std::string_view bytes);

// A safetensors file's header: 8 bytes for the size of the data (little endian), then the JSON. The
// tensors must cover the data, and a header written from them must read the same.
Ending read_safetensors_header(std::string_view bytes);

// A model's config.json. Sizes must be positive, and heads must divide.
Ending read_model_config(std::string_view bytes);

}  // namespace shardproof::fuzz
