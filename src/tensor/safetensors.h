// Reads and writes safetensors files (safetensors_reader.h) as LibTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensor/safetensors_reader.h"

namespace shardproof {

class SafetensorsFile : public SafetensorsReader {
 public:
  static SafetensorsFile open(const std::string& path);
  static SafetensorsFile from_fd(int fd, const std::string& name_for_errors);
  // view() as a tensor. Do not write to it.
  at::Tensor get(const std::string& name) const;

 private:
  explicit SafetensorsFile(SafetensorsReader file) : SafetensorsReader(std::move(file)) {}
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Writes tensors of wider dtypes first, so that all data is aligned, otherwise in the given order.
// Writes to a temporary name beside `path` and renames, so that a crash leaves the old file whole.
void write_safetensors(const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});
// Writes at the start of an open descriptor (a memfd), and sets its size.
void write_safetensors_fd(int fd, const NamedTensors& tensors,
                          const std::map<std::string, std::string>& metadata = {});

}  // namespace shardproof
