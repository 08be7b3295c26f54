#include "sim/judge/evidence/look_at_experts.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "sim/judge/evidence/expert_sums.h"

namespace shardproof::sim::judge {
namespace {

constexpr size_t kFewestWrong = 8;  // numbers

bool fits(const Values& now, const std::vector<double>& proposed) {
  for (size_t i = 0; i < now.actual.size(); ++i) {
    if (!(std::fabs(now.actual[i] - proposed[i]) <= kLeftBeside * now.allowance)) return false;
  }
  return true;
}

size_t count_wrong(const Values& now) {
  size_t wrong = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    wrong += !(std::fabs(now.actual[i] - now.golden[i]) <= now.allowance);
  }
  return wrong;
}

// --- A sum with the shared MLP
std::optional<Evidence> look_at_shared(const DiffTask& task, const Values& now,
                                       const GoldenRecord& golden) {
  constexpr std::string_view kSum = "_sum.output";
  const std::string& name = task.golden.name;
  if (name.find(".shared_expert") == name.npos || !name.ends_with(kSum)) return std::nullopt;
  const std::string shared = name.substr(0, name.size() - kSum.size());  // "..mlp.shared_expert"
  const std::string layer = shared.substr(0, shared.rfind('.') + 1);
  const GoldenTensor* own = beside(golden, task.golden, shared + ".", "down_proj.output");
  const GoldenTensor* routed = beside(golden, task.golden, layer + "experts", "experts.output");
  const GoldenTensor* gate = beside(golden, task.golden, shared + "_gate", ".output");
  if (own == nullptr || routed == nullptr || count_wrong(now) < kFewestWrong) return std::nullopt;
  if (own->value.sizes() != task.golden.value.sizes() ||
      routed->value.sizes() != task.golden.value.sizes()) {
    return std::nullopt;
  }
  const std::vector<double> a = golden_values(task, *routed), b = golden_values(task, *own);
  std::vector<double> logits(a.size(), 0);  // of the gate, at each element
  if (gate != nullptr) {
    const int64_t width = task.golden.value.sizes().back();
    task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
      for (int64_t i = 0; i < length; ++i) {
        logits[static_cast<size_t>(local + i)] = gate->value.data<double>()[(offset + i) / width];
      }
    });
  }
  const auto is = [&](const auto& form) {
    std::vector<double> proposed(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      proposed[i] = form(a[i], b[i], 1 / (1 + std::exp(-logits[i])), logits[i]);
    }
    return fits(now, proposed);
  };
  using D = double;
  if (is([](D x, D, D, D) { return x; })) return OtherComputation{"shared left out"};
  if (is([](D, D y, D s, D) { return s * y; })) return OtherComputation{"routed left out"};
  if (gate == nullptr) return std::nullopt;
  if (is([](D x, D y, D, D) { return x + y; })) return OtherComputation{"shared without gate"};
  if (is([](D x, D y, D, D l) { return x + l * y; })) return OtherComputation{"shared by logit"};
  if (is([](D x, D y, D s, D) { return s * (x + y); })) return OtherComputation{"gate on the sum"};
  return std::nullopt;
}

// --- The norm of gradients
std::optional<Evidence> look_at_norm(const DiffTask& task, const Values& now,
                                     const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  if (right.kind != ObservationKind::kGradNorm || now.actual.size() != 1) return std::nullopt;
  double dense = 0;
  std::vector<double> experts;  // the squares of each one's gradients
  for (const GoldenTensor& other : golden.tensors()) {
    if (other.kind != ObservationKind::kGradient || other.step != right.step) continue;
    if (!other.rows.empty() || other.value.dtype() != Dtype::kFloat64) return std::nullopt;
    const double* values = other.value.data<double>();
    const int64_t count = other.value.numel();
    const bool is_spread = is_of_experts(other.name, other.value.dim());
    const int64_t parts = is_spread ? other.value.size(0) : 1;
    if (is_spread) experts.resize(std::max(experts.size(), static_cast<size_t>(parts)));
    for (int64_t i = 0; i < count; ++i) {
      double& sum = is_spread ? experts[static_cast<size_t>(i / (count / parts))] : dense;
      sum += values[i] * values[i];
    }
  }
  const double all = std::accumulate(experts.begin(), experts.end(), 0.0);
  const auto is = [&](double square) {
    return std::fabs(now.actual[0] - std::sqrt(square)) <= now.allowance;
  };
  // Only where the golden's norm is that of these squares can another one be named by them.
  const bool is_known = std::fabs(now.golden[0] - std::sqrt(dense + all)) <= now.allowance;
  if (experts.empty() || !is_known || is(dense + all)) return std::nullopt;
  if (is(dense)) return OtherComputation{"norm without experts"};
  for (size_t parts = 2; parts <= experts.size(); ++parts) {
    if (experts.size() % parts != 0) continue;
    const auto number = static_cast<double>(parts);
    const auto of = static_cast<int64_t>(parts);
    if (is(dense + all / number)) return OtherComputation{"norm of mean of experts", 0, of};
    if (is(dense + all * number)) return OtherComputation{"norm with experts too often", 0, of};
    const auto size = static_cast<std::ptrdiff_t>(experts.size() / parts);
    for (size_t part = 0; part < parts; ++part) {
      const auto first = experts.begin() + static_cast<std::ptrdiff_t>(part) * size;
      if (is(dense + std::accumulate(first, first + size, 0.0))) {
        return OtherComputation{"norm of some experts", static_cast<int64_t>(part), of};
      }
    }
  }
  return std::nullopt;
}

// --- The balancing loss
// Solves a x = b [n, n], where x may be any number in a direction that a does not show: 0 then.
void solve(std::vector<double>& a, std::vector<double>& b) {
  constexpr double kShows = 1e-12;
  const size_t n = b.size();
  double greatest = 0;
  for (const double value : a) greatest = std::max(greatest, std::fabs(value));
  std::vector<bool> shows(n);
  for (size_t k = 0, row = 0; k < n; ++k) {
    size_t best = row;
    for (size_t i = row; i < n; ++i) {
      if (std::fabs(a[i * n + k]) > std::fabs(a[best * n + k])) best = i;
    }
    if (row == n || !(std::fabs(a[best * n + k]) > kShows * greatest)) continue;
    for (size_t j = 0; j < n; ++j) std::swap(a[row * n + j], a[best * n + j]);
    std::swap(b[row], b[best]);
    for (size_t i = 0; i < n; ++i) {
      if (i == row) continue;
      const double times = a[i * n + k] / a[row * n + k];
      for (size_t j = k; j < n; ++j) a[i * n + j] -= times * a[row * n + j];
      b[i] -= times * b[row];
    }
    shows[k] = true;
    ++row;
  }
  std::vector<double> x(n, 0.0);
  for (size_t k = 0, row = 0; k < n; ++k) {
    if (!shows[k]) continue;
    x[k] = b[row] / a[row * n + k];
    ++row;
  }
  b = x;
}

// What the golden keeps beside the gradient of a router's logits, as a rank's values: [T, N] each.
struct Router {
  size_t tokens = 0, experts = 0;
  int64_t real = 0;  // tokens that are not padding
  Values now = {};   // of real tokens; padding is right
  // Of each token, and the part that the z loss adds to the gradient; that is 0 without one.
  std::vector<double> scores = {}, slopes = {}, z = {};

  // Of the gradient of logit j: what score i adds to it, times the slope of a loss in score i.
  double entry(size_t token, size_t j, size_t i) const {
    return slopes[token * experts + j] * ((i == j ? 1 : 0) - scores[token * experts + i]);
  }
};

std::optional<Router> router_of(const DiffTask& task, const Values& with_padding,
                                const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  const auto find = [&](const char* kind) {
    const GoldenTensor* part = golden.find(Phase::kRecompute, right.step, right.name + kind);
    const bool is_like =
        part != nullptr && part->rows == right.rows && part->value.sizes() == right.value.sizes();
    return is_like ? part : nullptr;
  };
  const GoldenTensor *scores = find(".scores"), *slopes = find(".slopes"), *z = find(".z");
  if (scores == nullptr || slopes == nullptr) return std::nullopt;
  DiffTask plain = task;  // scores have no scale of gradients
  plain.scale = 1;
  Router router{.experts = static_cast<size_t>(right.value.sizes().back()), .now = with_padding};
  router.scores = golden_values(plain, *scores);
  router.slopes = golden_values(plain, *slopes);
  router.now.actual = router.now.golden;
  router.z = z == nullptr ? std::vector<double>(router.scores.size(), 0) : golden_values(task, *z);
  int64_t real = 0;  // elements
  task.plan.for_each_run([&](int64_t local, int64_t, int64_t length) {
    const auto first = with_padding.actual.begin() + local;
    std::copy(first, first + length, router.now.actual.begin() + local);
    real += length;
  });
  const size_t n = router.experts;
  router.tokens = router.now.actual.size() / n;
  router.real = real / static_cast<int64_t>(n);
  if (n < 3 || router.now.actual.size() % n != 0 || count_wrong(router.now) == 0)
    return std::nullopt;
  return router;
}

// What a balancing loss with shares f of the routes adds to the gradient of a token's logits is
// slope_j * (f_j - sum_i f_i score_i), up to a factor. Here the shares that are in a wrong gradient
// beside the golden's are found: N numbers, whose sum shows nowhere, for all tokens, and one for
// the z loss, whose mean may go over as many other tokens. One token alone does not decide, but may
// agree.
std::optional<Evidence> look_at_shares(const DiffTask& task, const Values& with_padding,
                                       const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  if (golden.find(Phase::kRecompute, right.step, right.name + ".balance") == nullptr)
    return std::nullopt;
  const std::optional<Router> router = router_of(task, with_padding, golden);
  if (!router) return std::nullopt;
  const size_t n = router->experts, unknown = n + 1;
  const auto entry = [&](size_t t, size_t j, size_t i) {
    return i < n ? router->entry(t, j, i) : router->z[t * n + j];
  };
  std::vector<double> squares(unknown * unknown, 0.0), numbers(unknown, 0.0);
  for (size_t i = 0; i < n; ++i) {  // the sum of the shares is 0
    std::fill_n(squares.begin() + static_cast<std::ptrdiff_t>(i * unknown), n, 1.0);
  }
  for (size_t t = 0; t < router->tokens; ++t) {
    for (size_t j = 0; j < n; ++j) {
      const double error = router->now.actual[t * n + j] - router->now.golden[t * n + j];
      for (size_t i = 0; i < unknown; ++i) {
        numbers[i] += entry(t, j, i) * error;
        for (size_t k = 0; k < unknown; ++k)
          squares[i * unknown + k] += entry(t, j, i) * entry(t, j, k);
      }
    }
  }
  solve(squares, numbers);
  std::vector<double> proposed = router->now.golden, of_z = proposed;
  for (size_t t = 0; t < router->tokens; ++t) {
    for (size_t j = 0; j < n; ++j) {
      for (size_t i = 0; i < unknown; ++i) proposed[t * n + j] += entry(t, j, i) * numbers[i];
      of_z[t * n + j] += entry(t, j, n) * numbers[n];
    }
  }
  // Where the z loss alone does it, the balancing loss is right.
  if (!fits(router->now, proposed) || fits(router->now, of_z)) return std::nullopt;
  return OtherComputation{
      .name = "other shares of routes", .count = static_cast<int64_t>(n), .places = {router->real}};
}

// The z loss of scores: its slope in score i is log(sum of exp(scores)) * softmax(scores)_i, up to
// a factor.
std::optional<Evidence> look_at_z_of_scores(const DiffTask& task, const Values& with_padding,
                                            const GoldenRecord& golden) {
  const std::optional<Router> router = router_of(task, with_padding, golden);
  if (!router) return std::nullopt;
  const size_t n = router->experts;
  std::vector<double> of_scores(router->z.size(), 0.0);
  double product = 0, square = 0;
  for (size_t t = 0; t < router->tokens; ++t) {
    const double* scores = router->scores.data() + t * n;
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(scores[i]);
    for (size_t j = 0; j < n; ++j) {
      double& value = of_scores[t * n + j];
      for (size_t i = 0; i < n; ++i) {
        value += router->entry(t, j, i) * std::log(sum) * std::exp(scores[i]) / sum;
      }
      const double error = router->now.actual[t * n + j] - router->now.golden[t * n + j];
      product += (error + router->z[t * n + j]) * value;
      square += value * value;
    }
  }
  std::vector<double> proposed = router->now.golden;
  for (size_t i = 0; i < proposed.size(); ++i) {
    proposed[i] += (square > 0 ? product / square : 0) * of_scores[i] - router->z[i];
  }
  const bool shows = std::any_of(router->z.begin(), router->z.end(), [&](double value) {
    return std::fabs(value) > kLeftBeside * router->now.allowance;
  });
  if (!shows || router->real < 2 || !fits(router->now, proposed)) return std::nullopt;
  return OtherComputation{"z of scores"};
}

// --- The selection bias
std::optional<Evidence> look_at_moves(const DiffTask& task, const Values& now,
                                      const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  const GoldenTensor* moves = golden.find(Phase::kRecompute, right.step, right.name + ".move");
  if (moves == nullptr || moves->value.sizes() != right.value.sizes()) return std::nullopt;
  const std::vector<double> due = golden_values(task, *moves);
  double rate = 0;
  for (const double move : due) rate = std::max(rate, std::fabs(move));
  std::vector<int64_t> places(due.size(), -1);
  task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) places[static_cast<size_t>(local + i)] = offset + i;
  });
  OtherComputation found{"moves of other counts"};
  bool all_back = true, all_none = true;
  for (size_t i = 0; i < due.size(); ++i) {
    const double back = now.actual[i] - now.golden[i] + 2 * due[i];
    all_back = all_back && std::fabs(back) <= kLeftBeside * now.allowance;
    if (std::fabs(now.actual[i] - now.golden[i]) <= now.allowance) continue;
    const double times = (now.actual[i] - now.golden[i] + due[i]) / rate;
    if (!(std::fabs(times - std::round(times)) * rate <= kLeftBeside * now.allowance)) {
      return std::nullopt;
    }
    if (!(std::fabs(times) < 1.5)) return std::nullopt;
    all_none = all_none && std::fabs(times) < 0.5;
    found.places.push_back(places[i]);
  }
  if (found.places.empty() || !(rate > 0)) return std::nullopt;
  const auto moved = std::count_if(due.begin(), due.end(), [](double move) { return move != 0; });
  if (std::ssize(found.places) == moved && all_none) return OtherComputation{"no moves"};
  if (std::ssize(found.places) == moved && all_back) return OtherComputation{"moves back"};
  return found;
}

}  // namespace

std::vector<Evidence> look_at_experts_of(const DiffTask& task, const Values& now,
                                         const GoldenRecord& golden) {
  std::vector<Evidence> found;
  for (const auto look : {look_at_expert_sums, look_at_expert_biases, look_at_shared, look_at_norm,
                          look_at_shares, look_at_z_of_scores, look_at_moves}) {
    if (auto evidence = look(task, now, golden)) found.push_back(std::move(*evidence));
  }
  return found;
}

}  // namespace shardproof::sim::judge
