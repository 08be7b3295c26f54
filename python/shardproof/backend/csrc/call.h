// One call of a rank as the other members see it, in words and as a digest.
#pragma once

#include <ATen/ATen.h>
#include <Python.h>

#include <cctype>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "pybind11/pybind11.h"

namespace shardproof {

using Tensors = std::vector<at::Tensor>;
using Integers = std::vector<int64_t>;

inline std::string list_text(const Integers& values) {
  std::string out = "[";
  for (size_t i = 0; i < values.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  }
  return out + "]";
}

// "rank 1", "ranks 0, 2, 3"; of more than eight, the first eight and the count of the others.
inline std::string names(const Integers& ranks) {
  constexpr size_t kMostListed = 8;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kMostListed; ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  if (ranks.size() <= kMostListed) return out;
  return out + " and " + std::to_string(ranks.size() - kMostListed) + " more";
}

inline std::string seconds_text(int64_t ms) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(ms) / 1000);
  return text;
}

inline std::string dtype_text(at::ScalarType type) {
  static const std::map<at::ScalarType, std::string> kNames{{at::kByte, "uint8"},
                                                            {at::kChar, "int8"},
                                                            {at::kShort, "int16"},
                                                            {at::kInt, "int32"},
                                                            {at::kLong, "int64"},
                                                            {at::kHalf, "float16"},
                                                            {at::kFloat, "float32"},
                                                            {at::kDouble, "float64"},
                                                            {at::kBFloat16, "bfloat16"},
                                                            {at::kBool, "bool"},
                                                            {at::kComplexFloat, "complex64"},
                                                            {at::kComplexDouble, "complex128"}};
  const auto found = kNames.find(type);
  if (found != kNames.end()) return found->second;
  std::string name = c10::toString(type);  // "Float8_e4m3fn"
  for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
  return name;
}

// "[4] float32"; of several "[4] [2, 3] float32"; equal neighbors once: "3 x [4] float32".
inline std::string tensors_text(const Tensors& tensors) {
  std::string out, dtype;
  for (size_t i = 0; i < tensors.size();) {
    size_t end = i;
    while (end < tensors.size() && tensors[end].sizes() == tensors[i].sizes() &&
           tensors[end].scalar_type() == tensors[i].scalar_type()) {
      ++end;
    }
    const std::string type = dtype_text(tensors[i].scalar_type());
    if (!dtype.empty() && dtype != type) out += dtype + " ";
    dtype = type;
    if (end - i > 1) out += std::to_string(end - i) + " x ";
    out += list_text(tensors[i].sizes().vec()) + " ";
    i = end;
  }
  return out + dtype;
}

// As tensors_text, without dims of size 1: a message of a number into [1] is received as it was
// sent.
inline std::string message_key(const Tensors& tensors) {
  Tensors squeezed;
  for (const at::Tensor& tensor : tensors) squeezed.push_back(tensor.squeeze());
  return tensors_text(squeezed);
}

inline const char* reduce_text(c10d::ReduceOp::RedOpType op) {
  constexpr const char* kNames[] = {"sum",     "avg",    "product", "min",        "max",
                                    "bit_and", "bit_or", "bit_xor", "premul_sum", "unused"};
  return kNames[std::min<size_t>(op, 9)];
}

inline uint64_t digest(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325ULL) {
  constexpr uint64_t kPrime = 0x100000001b3ULL;
  const auto* at = static_cast<const unsigned char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    hash = (hash ^ word) * kPrime;
    hash ^= hash >> 32;
  }
  for (; bytes > 0; --bytes, ++at) hash = (hash ^ *at) * kPrime;
  return hash;
}

// Of the bits of all elements, in order; the same whatever the strides and the device.
inline uint64_t digest(const Tensors& tensors) {
  uint64_t hash = digest("", 0);
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor plain = tensor.detach().cpu().contiguous();
    hash = digest(plain.data_ptr(), plain.nbytes(), hash);
  }
  return hash;
}

// What a member tells the others of its call (or of its result): equal digests agree.
struct Record {
  uint64_t digest = 0;
  int64_t rank = 0;  // global
  char text[496] = {};

  void set_text(const std::string& words) {
    const size_t size = std::min(words.size(), sizeof(text) - 1);
    std::memcpy(text, words.data(), size);
    if (size < words.size()) std::memcpy(text + size - 3, "...", 3);
    text[size] = 0;
  }
};
static_assert(sizeof(Record) == 512);

struct Call {
  std::string op;         // "all_reduce"; of a message "send" or "recv"
  std::string reduce_op;  // "sum"; "" where there is none
  std::string direction;  // " from rank 0", " to rank 3 (tag 2)"; "" where there is none
  std::string tensors;    // "[4] float32"
  std::string strides;    // " with strides [1, 4]", where they count
  std::string site;       // "train.py:31"; "" where no Python called
  int64_t sequence = 0;   // from 0: in this group; of a message in its channel

  std::string op_text() const {
    return (reduce_op.empty() ? op : op + "(" + reduce_op + ")") + direction;
  }
  // "all_reduce(sum) [4] float32 at train.py:31"
  std::string text() const {
    return op_text() + (tensors.empty() ? "" : " " + tensors) + strides +
           (site.empty() ? " from C++" : " at " + site);
  }
  Record record(int64_t rank, const std::string& key) const {
    Record out;
    out.rank = rank;
    out.digest = digest(key.data(), key.size());
    out.set_text(text());
    return out;
  }
};

// Where the user's program calls: the nearest Python frame whose file is outside of `skipped`
// folders, or the outermost one. Paths below `here` are given without it.
class CallSite {
 public:
  CallSite(std::vector<std::string> skipped, std::string here)
      : skipped_(std::move(skipped)), here_(std::move(here) + "/") {}

  std::string find() const {
    if (!Py_IsInitialized()) return "";
    pybind11::gil_scoped_acquire gil;
    std::string site;
    PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
    bool found = false;
    while (frame != nullptr && !found) {
      PyFrameObject* back = PyFrame_GetBack(frame);
      PyCodeObject* code = PyFrame_GetCode(frame);
      const char* file = PyUnicode_AsUTF8(code->co_filename);
      found = file != nullptr && !is_skipped(file);
      if (found || (back == nullptr && file != nullptr)) {
        site = shown(file) + ":" + std::to_string(PyFrame_GetLineNumber(frame));
      }
      Py_DECREF(code);
      Py_DECREF(frame);
      frame = back;
    }
    Py_XDECREF(frame);
    return site;
  }

 private:
  bool is_skipped(const char* file) const {
    for (const std::string& folder : skipped_) {
      if (std::strncmp(file, folder.data(), folder.size()) != 0) continue;
      // The packages of the user lie below the standard library's folder.
      const bool installed = std::strncmp(file + folder.size(), "site-packages/", 14) == 0 ||
                             std::strncmp(file + folder.size(), "dist-packages/", 14) == 0;
      if (!installed) return true;
    }
    return std::strncmp(file, "<frozen", 7) == 0;
  }
  std::string shown(const char* file) const {
    const bool below = std::strncmp(file, here_.data(), here_.size()) == 0;
    return below ? file + here_.size() : file;
  }

  const std::vector<std::string> skipped_;
  const std::string here_;
};

}  // namespace shardproof
