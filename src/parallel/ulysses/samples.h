// Samples of any sizes that the ranks of a Ulysses group bring along: all of them work on all
// samples together, and each goes home with its contiguous block.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

// Named tensors (on the CPU, any shape and dtype) and texts.
using Sample = std::map<std::string, std::variant<at::Tensor, std::string>>;

// The samples of all ranks, rank 0's first, each rank's in its own order. Ranks may bring different
// numbers of samples, also none. `device`: where the group's backend takes tensors; they travel
// from there.
//
// Forward   all_gather of the sizes in bytes, all_gather of the bytes
// Source    LightRFT parallel_utils.py, SPDataProcessor.preprocess
std::vector<Sample> gather_samples(const std::vector<Sample>& own, Communicator& ulysses,
                                   const std::string& label, at::Device device);

// This rank's block of `all`, which every rank holds alike. No communication.
// Throws    Error(kRefused): the count does not divide by the group
// Source    LightRFT parallel_utils.py, SPDataProcessor.postprocess
std::vector<Sample> own_samples(const std::vector<Sample>& all, const Communicator& ulysses);

}  // namespace shardproof
