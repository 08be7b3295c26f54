// Memory that is lent to a backend's call instead of shared with it. A backend with a thread of its
// own lets go of a call's tensors some time after the rank has gone on; what they hold would be
// freed there, late, on another thread than the one that counts what the rank holds. Instead the
// backend sees aliases without an owner, and the rank's side keeps the tensors until it has waited.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace c10d {
class Work;
}

namespace shardproof {

// The same elements, kept alive by nobody. On the CPU.
at::Tensor alias_without_owner(const at::Tensor& tensor);

// `work`, which has such aliases of `memory`: kept until wait() has returned. Dropped before that,
// it leaves the memory to the call, which may still be using it; work->getFuture() must be there.
c10::intrusive_ptr<c10d::Work> keeping_until_waited(c10::intrusive_ptr<c10d::Work> work,
                                                    std::vector<at::Tensor> memory);

}  // namespace shardproof
