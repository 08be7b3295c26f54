// Muon on one device, written from its definition: the polynomial of the Newton-Schulz iteration
// acts on the singular values of a matrix and leaves its singular vectors. It uses no code of
// src/optim.
//
//   p(s) = 3.4445 s - 4.7750 s^3 + 2.0315 s^5, five times, on the singular values of M / |M|
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardproof::golden {

// Whether Muon updates this parameter: a weight of a linear, a router or experts in a layer.
bool is_hidden_matrix(const std::string& name, const at::Tensor& value);

// The update of a parameter from its momentum [.., rows, columns]. Gate and up of experts, which
// are one tensor, are two matrices.
at::Tensor muon_update(const std::string& name, const at::Tensor& momentum);

}  // namespace shardproof::golden
