// Samples of any sizes from the ranks of a Ulysses group: all ranks work on all samples together,
// and each keeps its contiguous block of the results.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// Named tensors (any shape, dtype, strides and device) and texts.
using Sample = std::map<std::string, std::variant<at::Tensor, std::string>>;

// The samples of all ranks in rank order, each rank's in its own order. Ranks may have different
// numbers of samples, including none. `device` is where the group's backend takes tensors. Every
// tensor of the result is a dense copy on the CPU without a gradient, in a group of one too: none
// shares memory with `own`.
//
// Forward   all_gather of the sizes in bytes, all_gather of the bytes
// Source    LightRFT parallel_utils.py, SPDataProcessor.preprocess
std::vector<Sample> gather_samples(const std::vector<Sample>& own, Communicator& ulysses,
                                   const std::string& label, at::Device device);

// This rank's block of `all`, which must be the same on every rank. No communication.
// Throws    Error(kRefused): the count does not divide by the group
// Source    LightRFT parallel_utils.py, SPDataProcessor.postprocess
std::vector<Sample> own_samples(const std::vector<Sample>& all, const Communicator& ulysses);

}  // namespace shardproof
