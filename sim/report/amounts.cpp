// By how much the values of two runs differ.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/count_of.h"
#include "sim/report/compare_runs.h"
#include "tensor/dtype_name.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::report {

namespace {

Amount amount_of(const at::Tensor& a, const at::Tensor& b) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const auto* x = a.const_data_ptr<double>();
  const auto* y = b.const_data_ptr<double>();
  Amount amount{.elements = a.numel()};
  for (int64_t i = 0; i < amount.elements; ++i) {
    const bool same_bits = std::bit_cast<uint64_t>(x[i]) == std::bit_cast<uint64_t>(y[i]);
    if (same_bits || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    const double gap = std::abs(x[i] - y[i]);  // of 0 and -0: 0
    const double share = gap == 0 ? 0 : gap / std::max(std::abs(x[i]), std::abs(y[i]));
    ++amount.differing;
    amount.absolute = std::max(amount.absolute, std::isnan(gap) ? kInfinity : gap);
    amount.relative = std::max(amount.relative, std::isnan(share) ? kInfinity : share);
  }
  return amount;
}

std::string difference_of(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) {
    return fmt::format("[{}] in A, [{}] in B", fmt::join(a.sizes(), ", "),
                       fmt::join(b.sizes(), ", "));
  }
  if (a.scalar_type() != b.scalar_type()) {
    return fmt::format("{} in A, {} in B", dtype_name(a.scalar_type()),
                       dtype_name(b.scalar_type()));
  }
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  if (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0)
    return "";
  const Amount amount = amount_of(x.to(at::kDouble), y.to(at::kDouble));
  return amount.differing > 0 ? amount_text(amount) : "bits that no float64 shows";
}

}  // namespace

void Amount::add(const Amount& other) {
  elements += other.elements;
  differing += other.differing;
  absolute = std::max(absolute, other.absolute);
  relative = std::max(relative, other.relative);
}

std::string amount_text(const Amount& amount) {
  if (amount.differing == 0)
    return fmt::format("{}, all equal", count_of(amount.elements, "element"));
  if (amount.absolute == 0) {
    return fmt::format("{} of {}: 0 and -0", amount.differing,
                       count_of(amount.elements, "element"));
  }
  return fmt::format("{} of {} {}, at most by {:.3g}, relatively by {:.3g}", amount.differing,
                     count_of(amount.elements, "element"),
                     amount.elements == 1 ? "differs" : "differ", amount.absolute, amount.relative);
}

std::map<std::string, Amount> amounts_of_files(const std::string& a, const std::string& b) {
  const SafetensorsFile of_a = SafetensorsFile::open(a), of_b = SafetensorsFile::open(b);
  std::map<std::string, Amount> amounts;
  for (const std::string& name : of_a.names()) {
    if (!of_b.contains(name)) continue;
    const at::Tensor x = of_a.get(name), y = of_b.get(name);
    const bool alike =
        x.sizes() == y.sizes() && x.scalar_type() == at::kDouble && y.scalar_type() == at::kDouble;
    if (alike) amounts[name] = amount_of(x, y);
  }
  return amounts;
}

std::string dump_differences(const std::string& a, const std::string& b) {
  const SafetensorsFile of_a = SafetensorsFile::open(a), of_b = SafetensorsFile::open(b);
  std::map<std::string, std::string> differences;  // "" where all values are equal
  for (const std::string& name : of_b.names()) differences[name] = "only in B";
  bool any = false;
  for (const std::string& name : of_a.names()) {
    const bool in_both = of_b.contains(name);
    differences[name] = in_both ? difference_of(of_a.get(name), of_b.get(name)) : "only in A";
    any = any || in_both;
  }
  if (!any) {
    throw_bad_input(fmt::format("nothing to compare: {} and {} have no tensor of one name", a, b),
                    "name two files that `shardproof run --dump` wrote of one case");
  }
  std::string text;
  size_t width = 0;
  for (const auto& [name, difference] : differences) width = std::max(width, name.size());
  for (const auto& [name, difference] : differences) {
    if (!difference.empty()) text += fmt::format("{:<{}}  {}\n", name, width, difference);
  }
  return text;
}

}  // namespace shardproof::sim::report
