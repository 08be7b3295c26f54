#include "parallel/tp/broadcast_data.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <set>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof {
namespace {

using Keys = std::vector<std::string>;
using Tensors = std::map<std::string, at::Tensor>;

// The error in rank 0's data, as a number that every rank receives.
enum Trouble : int64_t { kFine, kMissing, kWrongDtype, kKeyTwice };

// What all ranks must know before one of them sends data: the largest of each over the group.
enum Notice : int64_t {
  kTrouble,
  kKeyIndex,        // the key with the error
  kFoundDtype,      // the wrong dtype
  kHeaderSize,      // count of numbers in the list of sizes
  kRequest,         // digest of this rank's keys and dtype
  kRequestNegated,  // its negative: the maxima of the two show whether ranks differ
  kNoticeSize
};

int64_t digest_of_request(const Keys& keys, at::ScalarType dtype) {
  std::string text = c10::toString(dtype);
  for (const std::string& key : keys) text += '\0' + key;
  return static_cast<int64_t>(stream_seed(0, text) >> 2);
}

struct DataHeader {
  Trouble trouble = kFine;
  int64_t key_index = 0;
  int64_t found_dtype = 0;
  std::vector<int64_t> sizes = {};  // for each key: the number of dims, then the dims
};

DataHeader describe_data(const Keys& keys, const Tensors& data, at::ScalarType dtype) {
  DataHeader header;
  for (size_t i = 0; i < keys.size(); ++i) {
    header.key_index = static_cast<int64_t>(i);
    const auto found = data.find(keys[i]);
    if (found == data.end() || !found->second.defined()) {
      header.trouble = kMissing;
      return header;
    }
    if (found->second.scalar_type() != dtype) {
      header.trouble = kWrongDtype;
      header.found_dtype = static_cast<int64_t>(found->second.scalar_type());
      return header;
    }
    header.sizes.push_back(found->second.dim());
    for (const int64_t size : found->second.sizes()) header.sizes.push_back(size);
  }
  return header;
}

void check_notice(const at::Tensor& notice, const Keys& keys, at::ScalarType dtype) {
  const auto value = [&](Notice which) { return notice[which].item<int64_t>(); };
  if (value(kRequest) != -value(kRequestNegated)) {
    throw_bad_input("the ranks of a group pass different keys or dtypes for one batch",
                    "give every rank the same list of keys, in the same order, and the same dtype");
  }
  const Trouble trouble = static_cast<Trouble>(value(kTrouble));
  if (trouble == kFine) return;
  const std::string& key = keys[static_cast<size_t>(value(kKeyIndex))];
  if (trouble == kKeyTwice) {
    throw_bad_input(fmt::format("key '{}' is passed twice", key), "pass each key once");
  }
  if (trouble == kMissing) {
    throw_bad_input(fmt::format("the batch of the group's first rank has no '{}'", key),
                    "leave the key out, or put the tensor into the batch");
  }
  const auto found = static_cast<at::ScalarType>(value(kFoundDtype));
  throw_bad_input(fmt::format("'{}' of the batch is {}, but the dtype of the call is {}", key,
                              c10::toString(found), c10::toString(dtype)),
                  "convert it, or send the tensors of each dtype in a separate call");
}

at::Tensor notice_of(const DataHeader& header, const Keys& keys, at::ScalarType dtype,
                     at::Device device) {
  std::vector<int64_t> notice(kNoticeSize, 0);
  const int64_t request = digest_of_request(keys, dtype);
  notice[kTrouble] = header.trouble;
  notice[kKeyIndex] = header.key_index;
  notice[kFoundDtype] = header.found_dtype;
  notice[kHeaderSize] = static_cast<int64_t>(header.sizes.size());
  notice[kRequest] = request;
  notice[kRequestNegated] = -request;
  return at::tensor(notice, at::kLong).to(device);
}

// The index of the first key that equals an earlier one, or -1.
int64_t repeated_key(const Keys& keys) {
  std::set<std::string> seen;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!seen.insert(keys[i]).second) return static_cast<int64_t>(i);
  }
  return -1;
}

at::Tensor all_elements(const Keys& keys, const Tensors& data, const at::TensorOptions& options) {
  std::vector<at::Tensor> flat = {at::empty({0}, options)};
  for (const std::string& key : keys) {
    flat.push_back(data.at(key).detach().reshape({-1}).to(options.device()));
  }
  return at::cat(flat);
}

// The shape of each key's tensor, from the list of sizes.
std::vector<std::vector<int64_t>> shapes_in(const at::Tensor& sizes, size_t keys) {
  std::vector<std::vector<int64_t>> shapes(keys);
  int64_t cursor = 0;
  for (std::vector<int64_t>& shape : shapes) {
    shape.resize(static_cast<size_t>(sizes[cursor++].item<int64_t>()));
    for (int64_t& size : shape) size = sizes[cursor++].item<int64_t>();
  }
  return shapes;
}

}  // namespace

Tensors broadcast_data(const Keys& keys, const Tensors& data, at::ScalarType dtype,
                       at::Device device, Communicator& group) {
  const bool reads = group.rank() == 0;
  DataHeader header = reads ? describe_data(keys, data, dtype) : DataHeader();
  if (const int64_t again = repeated_key(keys); again >= 0) {
    header = {.trouble = kKeyTwice, .key_index = again};
  }
  const at::Tensor notice = group
                                .all_reduce(notice_of(header, keys, dtype, device), ReduceOp::kMax,
                                            "broadcast_data notice")
                                .cpu();
  check_notice(notice, keys, dtype);
  const at::TensorOptions counts = at::TensorOptions().dtype(at::kLong).device(device);
  const at::Tensor own_sizes = reads ? at::tensor(header.sizes, at::kLong).to(device)
                                     : at::zeros({notice[kHeaderSize].item<int64_t>()}, counts);
  const at::Tensor sizes = group.broadcast(own_sizes, 0, "broadcast_data sizes").cpu();
  const auto shapes = shapes_in(sizes, keys.size());
  std::vector<int64_t> lengths;
  for (const auto& shape : shapes) lengths.push_back(c10::multiply_integers(shape));
  const int64_t total = c10::sum_integers(lengths);
  const at::TensorOptions options = at::TensorOptions().dtype(dtype).device(device);
  at::Tensor elements = reads ? all_elements(keys, data, options) : at::empty({total}, options);
  if (total > 0) elements = group.broadcast(elements, 0, "broadcast_data elements");
  const std::vector<at::Tensor> parts = elements.split_with_sizes(lengths);
  Tensors out;
  for (size_t i = 0; i < keys.size(); ++i) out[keys[i]] = parts[i].view(shapes[i]).clone();
  return out;
}

}  // namespace shardproof
