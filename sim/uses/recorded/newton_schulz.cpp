#include "sim/uses/recorded/newton_schulz.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace shardproof::sim::recorded {
namespace {

Matrix transposed(const Matrix& from) {
  Matrix to{from.columns, from.rows, std::vector<double>(from.values.size())};
  for (int64_t row = 0; row < from.rows; ++row) {
    for (int64_t column = 0; column < from.columns; ++column)
      to.values[column * from.rows + row] = from.values[row * from.columns + column];
  }
  return to;
}

// share * added + factor * a b
Matrix product(const Matrix& a, const Matrix& b, double factor, const Matrix* added, double share) {
  Matrix out{a.rows, b.columns, std::vector<double>(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t i = 0; i < a.rows; ++i) {
    double* to = out.values.data() + i * b.columns;
    for (int64_t j = 0; added && j < b.columns; ++j)
      to[j] = share * added->values[i * b.columns + j];
    for (int64_t k = 0; k < a.columns; ++k) {
      const double by = factor * a.values[i * a.columns + k];
      const double* from = b.values.data() + k * b.columns;
      for (int64_t j = 0; j < b.columns; ++j) to[j] += by * from[j];
    }
  }
  return out;
}

// To the nearest, ties to even; values that float32 does not hold need no care here.
void round_to_bfloat16(Matrix& matrix) {
  for (double& value : matrix.values) {
    uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(value));
    bits += 0x7fff + ((bits >> 16) & 1);
    value = std::bit_cast<float>(bits & 0xffff0000u);
  }
}

double norm_of(const Matrix& matrix) {
  return std::sqrt(
      std::inner_product(matrix.values.begin(), matrix.values.end(), matrix.values.begin(), 0.0));
}

}  // namespace

Matrix orthogonal(Matrix matrix, const MatrixRule& rule, bool is_narrow) {
  const auto rounded = [is_narrow](Matrix one) {
    if (is_narrow) round_to_bfloat16(one);
    return one;
  };
  const double norm = norm_of(matrix);
  if (!(norm > 0)) return matrix;
  const bool is_tall = matrix.rows > matrix.columns;
  Matrix x = rounded(is_tall ? transposed(matrix) : std::move(matrix));
  for (double& value : x.values) value /= norm;
  x = rounded(std::move(x));
  const auto [a, b, c] = rule.coefficients;
  for (int64_t i = 0; i < rule.iterations; ++i) {
    const Matrix gram = rounded(product(x, transposed(x), 1, nullptr, 0));
    const Matrix update = rounded(product(gram, gram, c, &gram, b));
    x = rounded(product(update, x, 1, &x, a));
  }
  return is_tall ? transposed(x) : x;
}

bool fits(const std::vector<int64_t>& blocks, int64_t rows) {
  const int64_t length = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  const bool is_empty = std::ranges::any_of(blocks, [](int64_t one) { return one < 1; });
  return blocks.empty() || (!is_empty && rows > 0 && rows % length == 0);
}

Matrix orthogonal_blocks(const Matrix& matrix, const MatrixRule& rule, bool is_narrow) {
  if (rule.blocks.empty()) return orthogonal(matrix, rule, is_narrow);
  const int64_t length = std::accumulate(rule.blocks.begin(), rule.blocks.end(), int64_t{0});
  Matrix out = matrix;
  int64_t first = 0;
  for (const int64_t rows : rule.blocks) {
    std::vector<int64_t> of_block;
    for (int64_t row = first; row < matrix.rows; row += length) {
      for (int64_t i = 0; i < rows; ++i) of_block.push_back(row + i);
    }
    Matrix block{std::ssize(of_block), matrix.columns, {}};
    for (const int64_t row : of_block) {
      const auto from = matrix.values.begin() + row * matrix.columns;
      block.values.insert(block.values.end(), from, from + matrix.columns);
    }
    const Matrix done = orthogonal(std::move(block), rule, is_narrow);
    for (size_t i = 0; i < of_block.size(); ++i) {
      const auto from = done.values.begin() + static_cast<int64_t>(i) * matrix.columns;
      std::copy(from, from + matrix.columns, out.values.begin() + of_block[i] * matrix.columns);
    }
    first += rows;
  }
  return out;
}

double work_of(int64_t rows, int64_t columns, const MatrixRule& rule) {
  const auto [small, large] =
      std::minmax({static_cast<double>(rows), static_cast<double>(columns)});
  return static_cast<double>(rule.iterations) * small * small * (2 * large + small);
}

double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double length_of(const Values& a) { return std::sqrt(dot(a, a)); }

double distance_of(const Values& a, const Values& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

Fit fit_of(const Values& moved, const Values& direction, const Values& before) {
  constexpr double kParallel = 0.1;  // a square of a sine, below which roundings decide the split
  constexpr double kRoundings = 1e-6;
  const double dd = dot(direction, direction), db = dot(direction, before),
               bb = dot(before, before);
  const double md = dot(moved, direction), mb = dot(moved, before);
  const double area = dd * bb - db * db;
  if (!(dd > 0)) return {};
  const auto fit_with = [&](bool decays) {
    Fit fit;
    fit.factor = decays ? (md * bb - mb * db) / area : md / dd;
    fit.decay = decays ? (mb * dd - md * db) / area : 0;
    double left = 0;
    for (size_t i = 0; i < moved.size(); ++i) {
      const double apart = moved[i] - fit.factor * direction[i] - fit.decay * before[i];
      left += apart * apart;
    }
    const double size = std::fabs(fit.factor) * std::sqrt(dd);
    if (size > 0) fit.unlike = std::sqrt(left) / size;
    return fit;
  };
  const Fit fit = fit_with(area > 1e-9 * dd * bb);
  const bool is_split = fit.unlike <= kRoundings || area > kParallel * dd * bb;
  return is_split ? fit : fit_with(false);
}

}  // namespace shardproof::sim::recorded
