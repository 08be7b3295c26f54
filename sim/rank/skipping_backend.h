// A backend that leaves out single calls: they return at once and their outputs are zeros.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace c10d {
class Backend;
}

namespace shardproof::sim {

// A call made while *skip_next is true is left out, and *skip_next is false afterwards. Both live
// on one rank's thread.
c10::intrusive_ptr<c10d::Backend> make_skipping_backend(c10::intrusive_ptr<c10d::Backend> inner,
                                                        std::shared_ptr<bool> skip_next);

}  // namespace shardproof::sim
