#include "policy/tokenizer_files.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

// The files that save_pretrained of transformers writes for the tokenizers of these families.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "vocab.txt",
                                           "chat_template.jinja",
                                           "chat_template.json"};

}  // namespace

std::vector<std::string> copy_tokenizer(const std::string& from, const std::string& to) {
  std::vector<std::string> copied;
  for (const char* name : kTokenizerFiles) {
    std::error_code error;
    if (!fs::is_regular_file(fs::path(from) / name, error)) continue;
    fs::copy_file(fs::path(from) / name, fs::path(to) / name, fs::copy_options::overwrite_existing,
                  error);
    if (error) {
      throw_bad_input(
          fmt::format("{}/{} cannot be copied to {}: {}", from, name, to, error.message()),
          "check the disk and who may read the file");
    }
    copied.emplace_back(name);
  }
  if (copied.empty()) {
    throw_bad_input(fmt::format("'{}' has no file of a tokenizer", from),
                    "name the folder that the model's tokenizer was loaded from");
  }
  return copied;
}

}  // namespace shardproof
