#include "parallel/hf/save_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text_file.h"
#include "comm/shared_failure.h"
#include "model/config.h"
#include "parallel/reshard/held_tensor.h"
#include "tensor/dtype_name.h"
#include "tensor/safetensors.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWriter = 0;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

using HeldByName = std::map<std::string, HeldTensor>;

HeldByName by_name(const std::vector<ParameterPtr>& parameters,
                   const std::vector<at::Tensor>& pieces) {
  SHARDPROOF_ASSERT(parameters.size() == pieces.size(), "a piece for every parameter");
  HeldByName held;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    held[parameter.name] = {parameter.name, pieces[i], parameter.global_shape, parameter.layout};
  }
  return held;
}

// The full tensor on rank 0, undefined elsewhere.
at::Tensor collect(const HeldTensor& held, const SaveOptions& options, MeshComm& comm) {
  at::Tensor full;
  if (comm.rank() == kWriter) full = at::zeros(held.global_shape, options.dtype);
  collect_into(full, held, options.dtype, options.device, comm, "save " + held.key);
  return full;
}

int64_t stored_bytes(const HeldTensor& held, at::ScalarType dtype) {
  return c10::multiply_integers(held.global_shape) * static_cast<int64_t>(c10::elementSize(dtype));
}

// The architecture whose config describes only the decoder.
Architecture text_architecture(const std::string& family) {
  for (const Architecture& known : known_architectures()) {
    if (family == known.family && !known.text_inside) return known;
  }
  SHARDPROOF_ASSERT(false, "every family has a decoder alone");
  return {};
}

// Completes the config for transformers with architecture and dtype. For
// Gemma3ForConditionalGeneration it returns the text part, as Gemma3ForCausalLM.
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

// The names of the tensors in each file.
std::vector<std::vector<std::string>> deal_into_files(const HeldByName& held,
                                                      const SaveOptions& options) {
  std::vector<std::vector<std::string>> files(1);
  int64_t bytes = 0;
  for (const auto& [name, each] : held) {
    const int64_t more = stored_bytes(each, options.dtype);
    if (!files.back().empty() && bytes + more > options.max_file_bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(name);
    bytes += more;
  }
  return files;
}

std::string file_name(size_t index, size_t count) {
  if (count == 1) return kSingleFile;
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

void replace_text(const fs::path& path, const std::string& text) {
  const fs::path temporary = path.string() + ".tmp";
  write_text_file(temporary.string(), text + "\n");
  std::error_code error;
  fs::rename(temporary, path, error);
  if (!error) return;
  throw_bad_input(fmt::format("'{}' cannot be written", path.string()),
                  "name a folder that can be written to");
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (fs::is_directory(folder)) return;
  throw_bad_input(fmt::format("the folder '{}' cannot be made", folder),
                  "name a folder that can be written to");
}

void write_index(const std::string& folder, const std::vector<std::vector<std::string>>& files,
                 const HeldByName& held, at::ScalarType dtype) {
  nlohmann::json index = {{"metadata", nlohmann::json::object()},
                          {"weight_map", nlohmann::json::object()}};
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const std::string& name : files[i]) {
      index["weight_map"][name] = file_name(i, files.size());
      total += stored_bytes(held.at(name), dtype);
    }
  }
  index["metadata"]["total_size"] = total;
  replace_text(fs::path(folder) / kIndexFile, index.dump(2));
}

}  // namespace

void save_weights(const std::string& folder, const nlohmann::json& config,
                  const std::vector<ParameterPtr>& parameters,
                  const std::vector<at::Tensor>& pieces, const SaveOptions& options,
                  MeshComm& comm) {
  const at::NoGradGuard no_grad;
  const bool writes = comm.rank() == kWriter;
  const HeldByName held = by_name(parameters, pieces);
  const auto files = deal_into_files(held, options);
  std::optional<Error> failure;  // of the writer, which then writes no more
  const auto write = [&](const auto& action) {
    if (!writes || failure) return;
    try {
      action();
    } catch (const Error& error) {
      failure = error;
    }
  };
  write([&] { make_folder(folder); });
  for (size_t i = 0; i < files.size(); ++i) {
    NamedTensors tensors;
    for (const std::string& name : files[i]) {
      const at::Tensor full = collect(held.at(name), options, comm);
      if (writes) tensors.emplace_back(name, full);
    }
    write([&] {
      write_safetensors((fs::path(folder) / file_name(i, files.size())).string(), tensors,
                        {{"format", "pt"}});
    });
  }
  write([&] {
    replace_text(fs::path(folder) / "config.json", saved_config(config, options.dtype).dump(2));
    if (files.size() > 1) write_index(folder, files, held, options.dtype);
    std::error_code ignored;  // absent files need no removal
    fs::remove(fs::path(folder) / (files.size() > 1 ? kSingleFile : kIndexFile), ignored);
  });
  throw_together(comm.world(), failure, "saved");
}

}  // namespace shardproof
