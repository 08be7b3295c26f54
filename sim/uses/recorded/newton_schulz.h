// The iteration by which Muon makes a matrix orthogonal, in float64 or with bfloat16's roundings.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim::recorded {

// How a matrix optimizer moves a parameter of two dims: the momentum's state, and the parts of the
// matrix that are made orthogonal each for itself.
struct MatrixRule {
  std::string state = "momentum_buffer";
  double momentum = 0.95;
  bool nesterov = true;
  bool average = true;  // the state takes (1 - momentum) of the gradient; otherwise all of it
  std::array<double, 3> coefficients = {3.4445, -4.775, 2.0315};
  int64_t iterations = 5;
  // Numbers of rows that repeat until the matrix is filled. All parts of one number are one matrix.
  // Empty: the whole matrix is one.
  std::vector<int64_t> blocks = {};
};

// Row-major.
struct Matrix {
  int64_t rows = 0, columns = 0;
  std::vector<double> values = {};
};

// `is_narrow` rounds as bfloat16 does after each product, which says how far from float64 a right
// optimizer may be.
Matrix orthogonal(Matrix matrix, const MatrixRule& rule, bool is_narrow);

// Each of the rule's blocks for itself. They must fill the matrix (fits()).
Matrix orthogonal_blocks(const Matrix& matrix, const MatrixRule& rule, bool is_narrow);
bool fits(const std::vector<int64_t>& blocks, int64_t rows);

// Multiplications of one call.
double work_of(int64_t rows, int64_t columns, const MatrixRule& rule);

// How far an update is from a direction, whatever its length and the decay of weights.
using Values = std::vector<double>;

double dot(const Values& a, const Values& b);
double length_of(const Values& a);
double distance_of(const Values& a, const Values& b);

// moved = factor * direction + decay * before, as near as can be.
struct Fit {
  double factor = 0;
  double decay = 0;   // of `before`, unless that is parallel to the direction
  double unlike = 1;  // what that leaves, relative to factor * direction
};

Fit fit_of(const Values& moved, const Values& direction, const Values& before);

}  // namespace shardproof::sim::recorded
