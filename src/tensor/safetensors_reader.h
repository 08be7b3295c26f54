// Reads safetensors files.
//
//   8 bytes   N, little-endian
//   N bytes   JSON {"name": {"dtype", "shape", "data_offsets"}, "__metadata__": {text: text}}
//   the rest  data: the tensors cover it once, without holes
//
// Reading maps the file and checks everything before it returns a tensor: a hostile file is an
// Error(kBadInput) with the file's name, never a crash.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tensor/tensor_view.h"

namespace shardproof {

class SafetensorsReader {
 public:
  // Throws Error(kBadInput) for a file that is unreadable or too short, a header that is not JSON,
  // an unknown dtype, offsets that overlap, leave holes or lie outside the data, a shape that
  // contradicts the bytes, and duplicate keys.
  static SafetensorsReader open(const std::string& path);
  // Reads an open descriptor (a memfd) as open() does a file. The caller may close it afterwards.
  static SafetensorsReader from_fd(int fd, const std::string& name_for_errors);

  const std::vector<std::string>& names() const { return names_; }  // in order of their data
  bool contains(const std::string& name) const { return tensors_.count(name) != 0; }
  // A view of the mapping, which it keeps alive. Throws Error(kBadInput) with the nearest name for
  // a missing tensor.
  const TensorView& view(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::vector<std::string> names_;
  std::map<std::string, TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace shardproof
