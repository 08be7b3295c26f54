// Lends memory to a backend's call. The thread of a backend drops the tensors of a call some time
// after the rank has continued, and would then free their memory unseen by the rank's own count. So
// the backend gets aliases without an owner, and the rank keeps the tensors until it has waited.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace c10d {
class Work;
}

namespace shardproof {

// The same elements on the CPU; the caller keeps their memory alive.
at::Tensor alias_without_owner(const at::Tensor& tensor);

// Keeps `memory`, which `work` uses through aliases, until wait() has returned. If the work is
// dropped earlier, its future keeps the memory until the call ends: getFuture() may not be null.
c10::intrusive_ptr<c10d::Work> keeping_until_waited(c10::intrusive_ptr<c10d::Work> work,
                                                    std::vector<at::Tensor> memory);

}  // namespace shardproof
