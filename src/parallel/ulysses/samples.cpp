// A rank's samples travel as one row of bytes:
//
//   [8 bytes: length of the header] [header, JSON] [the tensors' elements, one after the other]
//
// The header lists the samples. It contains the texts, and the dtype and shape of each tensor.
#include "parallel/ulysses/samples.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tensor/int64_list.h"

namespace shardproof {
namespace {

using nlohmann::json;

void append(std::string& bytes, const at::Tensor& tensor) {
  const at::Tensor dense = tensor.detach().cpu().contiguous();
  bytes.append(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes());
}

std::string encode(const std::vector<Sample>& samples) {
  json header = json::array();
  std::string elements;
  for (const Sample& sample : samples) {
    json fields = json::array();
    for (const auto& [name, value] : sample) {
      if (const auto* text = std::get_if<std::string>(&value)) {
        fields.push_back({name, json::binary_t({text->begin(), text->end()})});
        continue;
      }
      const at::Tensor& tensor = std::get<at::Tensor>(value);
      fields.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
      append(elements, tensor);
    }
    header.push_back(std::move(fields));
  }
  const std::vector<uint8_t> text = json::to_cbor(header);
  const auto length = static_cast<uint64_t>(text.size());
  std::string bytes(sizeof(length), '\0');
  std::memcpy(bytes.data(), &length, sizeof(length));
  bytes.append(text.begin(), text.end());
  return bytes + elements;
}

Sample decode_sample(const json& fields, const char*& elements) {
  Sample sample;
  for (const json& field : fields) {
    const auto name = field[0].get<std::string>();
    if (field.size() == 2) {
      const auto& text = field[1].get_binary();
      sample[name] = std::string(text.begin(), text.end());
      continue;
    }
    const at::Tensor tensor =
        at::empty(field[2].get<std::vector<int64_t>>(),
                  at::TensorOptions().dtype(static_cast<at::ScalarType>(field[1].get<int>())));
    if (tensor.nbytes() > 0) std::memcpy(tensor.data_ptr(), elements, tensor.nbytes());
    elements += tensor.nbytes();
    sample[name] = tensor;
  }
  return sample;
}

std::vector<Sample> decode(const char* bytes) {
  uint64_t length = 0;
  std::memcpy(&length, bytes, sizeof(length));
  const char* text = bytes + sizeof(length);
  const char* elements = text + length;
  std::vector<Sample> samples;
  for (const json& fields : json::from_cbor(text, text + length)) {
    samples.push_back(decode_sample(fields, elements));
  }
  return samples;
}

}  // namespace

std::vector<Sample> gather_samples(const std::vector<Sample>& own, Communicator& ulysses,
                                   const std::string& label, at::Device device) {
  const std::string bytes = encode(own);
  if (ulysses.size() == 1) return decode(bytes.data());
  const at::Tensor size = at::tensor({static_cast<int64_t>(bytes.size())}, at::kLong);
  const std::vector<int64_t> counts =
      int64_list(ulysses.all_gather(size.to(device), 0, label + " sizes"));
  const at::Tensor local = at::empty({size.item<int64_t>()}, at::kByte);
  std::memcpy(local.data_ptr(), bytes.data(), bytes.size());
  const at::Tensor all = ulysses.all_gather(local.to(device), 0, label + " bytes", counts).cpu();
  const char* at = static_cast<const char*>(all.const_data_ptr());
  std::vector<Sample> samples;
  for (const int64_t count : counts) {
    for (Sample& sample : decode(at)) samples.push_back(std::move(sample));
    at += count;
  }
  return samples;
}

std::vector<Sample> own_samples(const std::vector<Sample>& all, const Communicator& ulysses) {
  const auto count = static_cast<int64_t>(all.size());
  if (count % ulysses.size() != 0) {
    throw_refused(fmt::format("{} samples do not divide by ulysses={}", count, ulysses.size()),
                  fmt::format("bring a multiple of {} samples", ulysses.size()));
  }
  const int64_t share = count / ulysses.size(), first = ulysses.rank() * share;
  return {all.begin() + first, all.begin() + first + share};
}

}  // namespace shardproof
