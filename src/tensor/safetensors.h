// Reads and writes safetensors files.
//
//   8 bytes   N, little-endian
//   N bytes   JSON {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}
//   the rest  data: covered by the tensors once, without holes
//
// Reading maps the file and checks everything before it hands out a tensor: a hostile file is an
// Error(kBadInput) with the file's name, never a crash.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shardproof {

class SafetensorsFile {
 public:
  // Throws Error(kBadInput): unreadable, too short, header not JSON, unknown dtype, offsets that
  // overlap, leave holes or lie outside the data, shape and bytes that disagree, duplicate keys.
  static SafetensorsFile open(const std::string& path);
  // The same over an open descriptor (a memfd); the descriptor may be closed afterwards.
  static SafetensorsFile from_fd(int fd, const std::string& name_for_errors);

  const std::vector<std::string>& names() const { return names_; }  // in order of their data
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  // A view of the mapping, kept alive by the tensor. Do not write to it.
  // Error(kBadInput) with the nearest name if missing.
  at::Tensor get(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Tensors of wider dtypes come first in the file (so that all data is aligned), else in the order
// given.
//
// Writes to a temporary name beside `path` and renames, so that a crash leaves the old file
// whole.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// Writes at the start of an open descriptor (a memfd), which is sized to fit.
void write_safetensors_fd(int fd, const NamedTensors& tensors,
                          const std::map<std::string, std::string>& metadata = {});

}  // namespace shardproof
