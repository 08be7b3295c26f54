// The precompiled header with LibTorch's heavy headers, parsed once. Every folder that uses
// LibTorch reuses it; our own headers include at most ATen/core/Tensor.h.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>
