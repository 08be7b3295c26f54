// A safetensors file whose tensors are LibTorch's.
#include "tensor/aten_view.h"
#include "tensor/safetensors.h"

namespace shardproof {

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  return SafetensorsFile(SafetensorsReader::open(path));
}

SafetensorsFile SafetensorsFile::from_fd(int fd, const std::string& name_for_errors) {
  return SafetensorsFile(SafetensorsReader::from_fd(fd, name_for_errors));
}

at::Tensor SafetensorsFile::get(const std::string& name) const { return tensor_of(view(name)); }

}  // namespace shardproof
