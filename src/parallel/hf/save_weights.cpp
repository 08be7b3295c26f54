#include "parallel/hf/save_weights.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/text_file.h"
#include "comm/shared_failure.h"
#include "model/saved_config.h"
#include "tensor/safetensors.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kWriter = 0;
constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

// A parameter and this rank's piece of it.
struct Held {
  const Parameter* parameter;
  at::Tensor piece;
};
using HeldByName = std::map<std::string, Held>;

HeldByName by_name(const std::vector<ParameterPtr>& parameters,
                   const std::vector<at::Tensor>& pieces) {
  SHARDPROOF_ASSERT(parameters.size() == pieces.size(), "a piece for every parameter");
  HeldByName held;
  for (size_t i = 0; i < parameters.size(); ++i) {
    held[parameters[i]->name] = {parameters[i].get(), pieces[i]};
  }
  return held;
}

// The full tensor on rank 0, undefined elsewhere. Of equal copies the lowest rank sends its own.
at::Tensor collect(const Held& held, const SaveOptions& options, MeshComm& comm) {
  const Parameter& parameter = *held.parameter;
  const Mesh& mesh = comm.mesh();
  const std::string label = "save " + parameter.name;
  const at::Tensor own = held.piece.detach().cpu().to(options.dtype).contiguous();
  std::vector<at::Tensor> pieces;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const auto copies = parameter.layout.replicas_of(mesh, rank);
    const int64_t owner = *std::min_element(copies.begin(), copies.end());
    const auto shape = parameter.layout.local_shape(parameter.global_shape, mesh, rank);
    const bool travels = owner == rank && rank != kWriter && c10::multiply_integers(shape) > 0;
    if (comm.rank() != kWriter) {
      if (travels && comm.rank() == rank) {
        comm.world().send(own.to(options.device), kWriter, label);
      }
    } else if (rank == kWriter || owner != rank) {
      pieces.push_back(rank == kWriter ? own : pieces[static_cast<size_t>(owner)]);
    } else {
      const auto wire = at::TensorOptions().dtype(options.dtype).device(options.device);
      const at::Tensor like = at::empty(shape, wire);
      pieces.push_back((travels ? comm.world().recv(like, rank, label) : like).cpu());
    }
  }
  if (comm.rank() != kWriter) return {};
  return reassemble(pieces, parameter.global_shape, parameter.layout, mesh);
}

int64_t stored_bytes(const Parameter& parameter, at::ScalarType dtype) {
  return c10::multiply_integers(parameter.global_shape) *
         static_cast<int64_t>(c10::elementSize(dtype));
}

// The names of the tensors in each file.
std::vector<std::vector<std::string>> deal_into_files(const HeldByName& held,
                                                      const SaveOptions& options) {
  std::vector<std::vector<std::string>> files(1);
  int64_t bytes = 0;
  for (const auto& [name, each] : held) {
    const int64_t more = stored_bytes(*each.parameter, options.dtype);
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
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("'{}' cannot be written", path.string()),
               .fix = "name a folder that can be written to"});
}

void make_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (fs::is_directory(folder)) return;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("the folder '{}' cannot be made", folder),
               .fix = "name a folder that can be written to"});
}

void write_index(const std::string& folder, const std::vector<std::vector<std::string>>& files,
                 const HeldByName& held, at::ScalarType dtype) {
  nlohmann::json index = {{"metadata", nlohmann::json::object()},
                          {"weight_map", nlohmann::json::object()}};
  int64_t total = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const std::string& name : files[i]) {
      index["weight_map"][name] = file_name(i, files.size());
      total += stored_bytes(*held.at(name).parameter, dtype);
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
