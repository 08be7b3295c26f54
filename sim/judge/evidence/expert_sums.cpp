#include "sim/judge/evidence/expert_sums.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>

namespace shardproof::sim::judge {
namespace {

constexpr int64_t kFewestColumns = 4;                            // of a token, which decide
constexpr int64_t kMostProducts = 18;                            // of routes and experts of a token
constexpr int64_t kMostOfToken = 1 << 15, kMostOfAll = 1 << 19;  // sums tried for a token

// What the golden knows of a layer: T tokens, K routes of each, N experts, E columns.
struct ExpertLayer {
  int64_t tokens, routes, experts, columns;
  const double* each;  // [T, N, E]
  std::vector<int64_t> ids;
  const double* weights;  // [T, K], before any route is dropped
  double scale;           // of the rank's values

  const double* result(int64_t token, int64_t expert) const {
    return each + (token * experts + expert) * columns;
  }
  int64_t id(int64_t token, int64_t k) const {
    return ids[static_cast<size_t>(token * routes + k)];
  }
  double weight_of(int64_t token, int64_t k) const { return scale * weights[token * routes + k]; }
};

std::optional<ExpertLayer> layer_of(const DiffTask& task, const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  if (!is_sum_of_experts(right.name) || right.value.dim() != 3) return std::nullopt;
  const GoldenTensor* each = golden.find(Phase::kRecompute, right.step, right.name + ".each");
  const std::string name = right.name.substr(0, right.name.rfind(".experts.") + 1);
  const GoldenTensor* ids = beside(golden, right, name, ".ids.output");
  const GoldenTensor* weights = beside(golden, right, name, ".weights.output");
  if (each == nullptr || ids == nullptr || weights == nullptr || each->rows != right.rows ||
      each->value.dim() != 4 || ids->value.dim() != 3 ||
      ids->value.sizes() != weights->value.sizes() || ids->value.dtype() != Dtype::kInt64 ||
      weights->value.dtype() != Dtype::kFloat64) {
    return std::nullopt;
  }
  ExpertLayer layer{.tokens = right.value.size(0) * right.value.size(1),
                    .routes = ids->value.size(2),
                    .experts = each->value.size(2),
                    .columns = right.value.size(2),
                    .each = each->value.data<double>(),
                    .ids = {},
                    .weights = weights->value.data<double>(),
                    .scale = task.scale};
  const int64_t* first = ids->value.data<int64_t>();
  layer.ids.assign(first, first + ids->value.numel());
  const bool fits = each->value.numel() == layer.tokens * layer.experts * layer.columns &&
                    ids->value.numel() == layer.tokens * layer.routes &&
                    layer.columns >= kFewestColumns;
  if (!fits) return std::nullopt;
  return layer;
}

// The rank's and the golden's sums of a token.
struct Token {
  std::vector<double> actual, golden;
  bool is_wrong = false;
};

// By the golden's number of the token; only those of which the rank holds all columns.
std::map<int64_t, Token> tokens_of(const DiffTask& task, const Values& now, int64_t columns) {
  std::map<int64_t, Token> tokens;
  task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      Token& token = tokens[(offset + i) / columns];
      const auto at = static_cast<size_t>(local + i);
      token.actual.push_back(now.actual[at]);
      token.golden.push_back(now.golden[at]);
      token.is_wrong |= !(std::fabs(now.actual[at] - now.golden[at]) <= now.allowance);
    }
  });
  std::erase_if(tokens, [&](const auto& one) { return std::ssize(one.second.actual) != columns; });
  return tokens;
}

struct Source {
  int64_t token = -1, expert = -1;  // -1: the route has no result
};

// The search for the sum of one token.
class Search {
 public:
  Search(const ExpertLayer& layer, int64_t token, double allowance)
      : layer_(layer), token_(token), allowance_(kLeftBeside * allowance) {}

  // Of the token's own routes those whose results add up to `sum`.
  std::optional<std::vector<bool>> own_routes(const std::vector<double>& sum) const {
    if (layer_.routes > 14) return std::nullopt;
    for (int64_t mask = (int64_t{1} << layer_.routes) - 1; mask >= 0; --mask) {
      std::vector<double> left = sum;
      std::vector<bool> there;
      for (int64_t k = 0; k < layer_.routes; ++k) {
        there.push_back((mask >> k & 1) != 0);
        if (there.back()) take(left, k, {token_, layer_.id(token_, k)});
      }
      if (is_zero(left)) return there;
    }
    return std::nullopt;
  }

  bool is_unweighted(const std::vector<double>& sum) const {
    std::vector<double> left = sum;
    for (int64_t k = 0; k < layer_.routes; ++k) {
      const double* result = layer_.result(token_, layer_.id(token_, k));
      for (size_t e = 0; e < left.size(); ++e) left[e] -= layer_.scale * result[e];
    }
    return is_zero(left);
  }

  // Whether routes have the results of any of the token's experts, each once: the experts of every
  // route by bits of k * N + expert. -1: there is no such sum.
  int64_t products(const std::vector<double>& sum) const {
    const int64_t count = layer_.routes * layer_.experts;
    if (count > kMostProducts) return -1;
    std::vector<double> left = sum;
    int64_t chosen = 0;
    for (int64_t step = 1;; ++step) {
      if (is_zero(left)) return chosen;
      if (step == int64_t{1} << count) return -1;
      const int64_t bit = std::countr_zero(static_cast<uint64_t>(step));  // a Gray code
      const int64_t k = bit / layer_.experts;
      chosen ^= int64_t{1} << bit;
      const double sign = (chosen >> bit & 1) != 0 ? -1 : 1;
      const double* result = layer_.result(token_, bit % layer_.experts);
      for (size_t e = 0; e < left.size(); ++e)
        left[e] += sign * layer_.weight_of(token_, k) * result[e];
    }
  }

  // Any results of these tokens, one for each route, or none for it.
  std::vector<Source> others(const std::vector<double>& sum, const std::vector<int64_t>& tokens,
                             int64_t most) {
    options_.clear();
    for (const int64_t token : tokens) {
      for (int64_t expert = 0; expert < layer_.experts; ++expert)
        options_.push_back({token, expert});
    }
    double sums = 1;
    for (int64_t k = 1; k < layer_.routes; ++k) sums *= static_cast<double>(options_.size() + 1);
    if (sums > static_cast<double>(most)) return {};
    std::ranges::sort(options_,
                      [&](const Source& a, const Source& b) { return first_of(a) < first_of(b); });
    chosen_.assign(static_cast<size_t>(layer_.routes), {});
    return extend(sum, 0) ? chosen_ : std::vector<Source>();
  }

 private:
  double first_of(const Source& source) const {
    return layer_.result(source.token, source.expert)[0];
  }
  void take(std::vector<double>& left, int64_t k, const Source& source) const {
    const double* result = layer_.result(source.token, source.expert);
    for (size_t e = 0; e < left.size(); ++e) left[e] -= layer_.weight_of(token_, k) * result[e];
  }
  bool is_zero(const std::vector<double>& left) const {
    return std::ranges::all_of(left, [&](double value) { return std::fabs(value) <= allowance_; });
  }

  bool extend(const std::vector<double>& left, int64_t k) {
    const auto place = static_cast<size_t>(k);
    const bool is_last = k + 1 == layer_.routes;
    chosen_[place] = {};
    if (is_last ? is_zero(left) : extend(left, k + 1)) return true;
    auto begin = options_.begin(), end = options_.end();
    const double weight = layer_.weight_of(token_, k);
    if (is_last) {  // the first column decides between nearly all of them
      if (weight == 0) return false;
      const double due = left[0] / weight, slack = allowance_ / std::fabs(weight);
      const auto is_less = [&](const Source& a, double value) { return first_of(a) < value; };
      begin = std::lower_bound(options_.begin(), options_.end(), due - slack, is_less);
      end = std::lower_bound(begin, options_.end(), due + slack, is_less);
    }
    for (auto option = begin; option != end; ++option) {
      std::vector<double> rest = left;
      take(rest, k, *option);
      chosen_[place] = *option;
      if (is_last ? is_zero(rest) : extend(rest, k + 1)) return true;
    }
    return false;
  }

  const ExpertLayer& layer_;
  int64_t token_;
  double allowance_;
  std::vector<Source> options_, chosen_;
};

// Counts the routes that have the results of several experts, or another one's alone.
void count_products(const ExpertLayer& layer, int64_t token, const std::vector<bool>& due,
                    int64_t chosen, ExpertResults& found) {
  for (int64_t k = 0; k < layer.routes; ++k) {
    const auto experts =
        static_cast<uint64_t>(chosen >> (k * layer.experts)) & ((uint64_t{1} << layer.experts) - 1);
    const int64_t own = layer.id(token, k);
    if (experts == 0 && due[static_cast<size_t>(k)]) ++found.lost;
    if (std::popcount(experts) > 1) ++found.several;
    if (std::popcount(experts) == 1 && (experts >> own & 1) == 0) ++found.of_experts;
    if (found.first.empty() && experts != uint64_t{1} << own) {
      const uint64_t others = experts & ~(uint64_t{1} << own);
      found.first = {token, own, others == 0 ? -1 : token,
                     others == 0 ? -1 : std::countr_zero(others)};
    }
  }
}

// Counts how the results of a token differ from those that are due.
void count_results(const ExpertLayer& layer, int64_t token, const std::vector<bool>& due,
                   const std::vector<Source>& sources, ExpertResults& found) {
  for (int64_t k = 0; k < layer.routes; ++k) {
    const Source& source = sources[static_cast<size_t>(k)];
    const bool is_due = due[static_cast<size_t>(k)], has = source.token >= 0;
    const int64_t own = layer.id(token, k);
    if (!is_due && !has) continue;
    if (is_due && source.token == token && source.expert == own) continue;
    if (is_due && !has) {
      ++found.lost;
    } else if (source.token == token && source.expert == own) {
      ++found.kept;
    } else {
      ++(source.token == token ? found.of_experts : found.of_tokens);
    }
    if (found.first.empty()) found.first = {token, own, source.token, source.expert};
  }
}

}  // namespace

const GoldenTensor* beside(const GoldenRecord& golden, const GoldenTensor& right,
                           const std::string& begin, const std::string& end) {
  for (const GoldenTensor& other : golden.tensors()) {
    const bool fits = other.phase == Phase::kForward && other.step == right.step &&
                      other.rows == right.rows && other.name.starts_with(begin) &&
                      other.name.ends_with(end);
    if (fits) return &other;
  }
  return nullptr;
}

std::optional<Evidence> look_at_expert_sums(const DiffTask& task, const Values& now,
                                            const GoldenRecord& golden) {
  const std::optional<ExpertLayer> layer = layer_of(task, golden);
  if (!layer) return std::nullopt;
  std::vector<int64_t> all(static_cast<size_t>(layer->tokens));
  std::iota(all.begin(), all.end(), 0);
  ExpertResults found;
  for (const auto& [token, sums] : tokens_of(task, now, layer->columns)) {
    if (!sums.is_wrong) continue;
    ++found.tokens;
    Search search(*layer, token, now.allowance);
    const auto due = search.own_routes(sums.golden);
    if (!due) return std::nullopt;
    const auto options = static_cast<double>(layer->experts + 1);
    const auto routes = static_cast<double>(layer->routes);
    std::vector<Source> sources;
    if (const auto own = search.own_routes(sums.actual)) {
      found.choices += routes * std::log(2.0);
      for (int64_t k = 0; k < layer->routes; ++k) {
        const bool is_there = (*own)[static_cast<size_t>(k)];
        sources.push_back(is_there ? Source{token, layer->id(token, k)} : Source{});
      }
    } else if (search.is_unweighted(sums.actual)) {
      found.choices += std::log(2.0);
      ++found.unweighted;
      continue;
    } else {
      found.choices += routes * std::log(options);
      sources = search.others(sums.actual, {token}, kMostOfToken);
      if (sources.empty()) {
        found.choices += routes * std::log(static_cast<double>(layer->tokens));
        sources = search.others(sums.actual, all, kMostOfAll);
      }
      if (sources.empty()) {
        found.choices += routes * static_cast<double>(layer->experts) * std::log(2.0);
        const int64_t chosen = search.products(sums.actual);
        if (chosen < 0) return std::nullopt;
        count_products(*layer, token, *due, chosen, found);
        continue;
      }
    }
    count_results(*layer, token, *due, sources, found);
  }
  if (found.tokens == 0) return std::nullopt;
  return found;
}

std::optional<Evidence> look_at_expert_biases(const DiffTask& task, const Values& now,
                                              const GoldenRecord& golden) {
  const std::optional<ExpertLayer> layer = layer_of(task, golden);
  const GoldenTensor& right = task.golden;
  const GoldenTensor* biases = golden.find(Phase::kRecompute, right.step, right.name + ".biases");
  if (!layer || biases == nullptr || biases->value.numel() != layer->experts * layer->columns) {
    return std::nullopt;
  }
  const double* bias = biases->value.data<double>();
  struct Sums {
    std::vector<double> beside, weighted, plain;
  } all;
  int64_t wrong = 0;
  for (const auto& [token, sums] : tokens_of(task, now, layer->columns)) {
    if (!Search(*layer, token, now.allowance).own_routes(sums.golden)) return std::nullopt;
    wrong += sums.is_wrong;
    for (int64_t e = 0; e < layer->columns; ++e) {
      const auto at = static_cast<size_t>(e);
      double weighted = 0, plain = 0;
      for (int64_t k = 0; k < layer->routes; ++k) {
        const double own = bias[layer->id(token, k) * layer->columns + e];
        weighted += layer->weight_of(token, k) * own;
        plain += layer->scale * own;
      }
      all.beside.push_back(sums.actual[at] - sums.golden[at]);
      all.weighted.push_back(weighted);
      all.plain.push_back(plain);
    }
  }
  if (wrong < 2) return std::nullopt;
  const auto is = [&](const auto& form) {
    for (size_t i = 0; i < all.beside.size(); ++i) {
      const double left = all.beside[i] - form(all.weighted[i], all.plain[i]);
      if (!(std::fabs(left) <= kLeftBeside * now.allowance)) return false;
    }
    return true;
  };
  if (is([](double weighted, double plain) { return plain - weighted; })) {
    return OtherComputation{"biases without weights"};
  }
  const double squares =
      std::inner_product(all.weighted.begin(), all.weighted.end(), all.weighted.begin(), 0.0);
  if (!(squares > 0)) return std::nullopt;
  const double more =
      std::inner_product(all.weighted.begin(), all.weighted.end(), all.beside.begin(), 0.0) /
      squares;
  if (!is([&](double weighted, double) { return more * weighted; })) return std::nullopt;
  return OtherComputation{.name = "biases times", .factor = 1 + more};
}

}  // namespace shardproof::sim::judge
