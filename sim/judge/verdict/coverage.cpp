#include "sim/judge/verdict/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/count_of.h"
#include "sim/case/names.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {
namespace {

struct TensorAccount {
  Coverage elements;
  int64_t held = 0;  // elements of the golden, over all ranks
  bool wrong = false, unresolved = false, undecided = false, of_roundings = false;
  std::string reason;               // the first one
  const ResultRow* last = nullptr;  // of its rows
  std::vector<int64_t> global_shape;

  void add(const ResultRow& row) {
    last = &row;
    elements.demanded += row.count + row.padding + row.undrawn;
    elements.judged += row.judged;
    if (row.padding > 0) elements.excused[Excuse::kPadding] += row.padding;
    if (row.undrawn > 0) elements.excused[Excuse::kNotDrawn] += row.undrawn;
    held += row.count;
    wrong = wrong || row.is_wrong();
    undecided = undecided || row.outcome == Outcome::kNotJudged || row.outcome == Outcome::kAddend;
    of_roundings = of_roundings || (row.outcome == Outcome::kMatch && row.golden_scale > 0 &&
                                    row.golden_scale <= 2 * row.allowance);
    if (global_shape.empty()) global_shape = row.global_shape;
    if (row.outcome == Outcome::kUnresolved) {
      unresolved = true;
      elements.excused[Excuse::kUnresolved] += row.count - row.judged;
    }
    if (reason.empty()) reason = row.reason;
  }

  // The golden judges "fed.param.w" by "param.w".
  std::string golden_name() const {
    using enum ObservationKind;
    return last->kind == kFed ? observed_name(kParameter, parameter_of(kFed, last->name))
                              : last->name;
  }

  UnjudgedTensor unjudged(int64_t count) const {
    return {last->name, last->phase, last->step, count, reason};
  }
};

int64_t size_of(const std::vector<int64_t>& shape) {
  int64_t size = 1;
  for (const int64_t length : shape) size *= length;
  return size;
}

void add_to(Coverage& all, const Coverage& one) {
  all.demanded += one.demanded;
  all.judged += one.judged;
  for (const auto& [excuse, count] : one.excused) all.excused[excuse] += count;
}

// The golden's tensor and the name, since "fed.param.w" is judged beside "param.w".
using TensorPlace = std::pair<GoldenPosition, std::string>;

std::map<TensorPlace, TensorAccount> accounts_by_tensor(const std::vector<RankReport>& reports) {
  std::map<TensorPlace, TensorAccount> tensors;
  for (const RankReport& report : reports) {
    for (const ResultRow& row : report.rows) {
      tensors[{golden_position(row.step, row.phase, row.order), row.name}].add(row);
    }
  }
  return tensors;
}

void add_excused(const std::vector<RankReport>& reports, Account& account) {
  std::map<GoldenPosition, size_t> counts;
  for (const RankReport& report : reports) {
    for (const Unobserved& missing : report.unobserved) {
      if (!missing.excuse || missing.excuse == Excuse::kElsewhere) continue;
      const GoldenPosition place = golden_position(missing.step, missing.phase, missing.order);
      if (++counts[place] != reports.size()) continue;  // some rank observed it
      const int64_t size = size_of(missing.global_shape);
      account.elements.demanded += size;
      account.elements.excused[*missing.excuse] += size;
    }
  }
}

void add_silent_ranks(const CaseSpec& spec, const std::vector<RankReport>& reports,
                      Account& account) {
  std::set<int64_t> heard;
  for (const RankReport& report : reports) heard.insert(report.rank);
  for (int64_t rank = 0; rank < spec.parallel.world_size(); ++rank) {
    if (heard.contains(rank)) continue;
    UnjudgedTensor all;
    all.reason = fmt::format("rank {} sent no report", rank);
    account.not_judged.push_back(std::move(all));
  }
}

// Finds whether a match would show anything: adds the tensors in any order.
class Emptiness {
 public:
  void add(const TensorAccount& tensor) {
    const ObservationKind kind = tensor.last->kind;
    const double scale = tensor.last->golden_scale;
    const bool is_floating = tensor.last->dtype.find("float") != std::string::npos;
    // Integers have no scale.
    not_zero_ = not_zero_ || (tensor.elements.judged > 0 && (scale != 0 || !is_floating));
    const bool is_gradient = kind == ObservationKind::kGradient;
    if (is_gradient) {
      ++gradients_;
      gradients_not_zero_ += scale != 0;
      gradients_of_roundings_ += tensor.of_roundings;
    }
    if (kind == ObservationKind::kLoss) loss_.add(scale);
    skipped_ = skipped_ || (kind == ObservationKind::kSkipped && scale > 0);
    const bool is_scored = kind == ObservationKind::kLogprobs || kind == ObservationKind::kScores;
    if (is_scored) scored_.add(scale);
  }
  void put(const CaseSpec& spec, Grounds& grounds) const {
    grounds.gradients = gradients_;
    grounds.trains = spec.is(ModelWorkload::kTrain);
    grounds.gradients_not_zero = gradients_not_zero_;
    grounds.gradients_of_roundings = gradients_of_roundings_;
    grounds.scores_something = scored_.magnitude > 0;
    grounds.has_loss = loss_.magnitude > 0;
    const Largest& values = loss_.seen ? loss_ : scored_;
    const bool no_value = values.seen && values.magnitude == 0;
    const bool no_gradient = gradients_not_zero_ == 0 && (gradients_ == 0 || no_value || !skipped_);
    grounds.proves = !is_model_workload(spec.workload);
    grounds.is_empty = grounds.proves ? !not_zero_ : no_gradient && (gradients_ > 0 || no_value);
  }

 private:
  struct Largest {
    bool seen = false;
    double magnitude = 0;
    void add(double scale) {
      seen = true;
      magnitude = std::max(magnitude, scale);
    }
  };
  Largest loss_, scored_;
  bool not_zero_ = false;  // a tensor
  bool skipped_ = false;   // a step, as gradients that overflow let a scaler do
  int64_t gradients_ = 0, gradients_not_zero_ = 0, gradients_of_roundings_ = 0;
};

std::string of_step(const UnjudgedTensor& tensor) {
  return tensor.step > 0 ? fmt::format("{} of step {}", tensor.tensor, tensor.step) : tensor.tensor;
}

}  // namespace

int64_t Coverage::left_out() const {
  int64_t left = demanded - judged;
  for (const auto& [excuse, count] : excused) left -= count;
  return left;
}

Account account_of(const CaseSpec& spec, const std::vector<RankReport>& reports) {
  Account account;
  if (!spec.judged) return account;
  add_silent_ranks(spec, reports, account);
  Emptiness emptiness;
  std::set<TensorPlace> all, judged;  // tensors that the golden lacks have one place
  for (auto& [place, tensor] : accounts_by_tensor(reports)) {
    if (tensor.held == 0 && size_of(tensor.global_shape) > 0 && !tensor.wrong) {
      tensor.elements.demanded += size_of(tensor.global_shape);
      tensor.reason = "no rank holds an element of it";
    }
    const TensorPlace own = {place.first, tensor.golden_name()};
    all.insert(own);
    emptiness.add(tensor);
    if (tensor.elements.judged > 0) judged.insert(own);
    add_to(account.elements, tensor.elements);
    if (tensor.undecided || tensor.elements.left_out() != 0) {
      account.not_judged.push_back(tensor.unjudged(tensor.elements.left_out()));
    } else if (tensor.unresolved && !tensor.wrong) {
      account.unresolved.push_back(tensor.unjudged(tensor.held));
    }
  }
  add_excused(reports, account);
  emptiness.put(spec, account.grounds);
  for (const RankReport& report : reports) account.grounds.scored_tokens = report.scored_tokens;
  account.all_tensors = static_cast<int64_t>(all.size());
  account.tensors = static_cast<int64_t>(judged.size());
  return account;
}

std::string unresolved_text(const Account& account, Precision precision) {
  if (account.unresolved.empty()) return "";
  const bool rounds = precision != Precision::kFloat64;
  return fmt::format("{} of {} tensors not {}{} (first: {})", account.unresolved.size(),
                     account.all_tensors, rounds ? "resolvable in " : "judged",
                     rounds ? name_of(precision) : "", of_step(account.unresolved.front()));
}

std::string grounds_text(const Grounds& grounds) {
  std::string text;
  if (grounds.scored_tokens >= 0) text = count_of(grounds.scored_tokens, "scored token");
  if (lacks_gradients(grounds)) return text + (text.empty() ? "" : ", ") + "no gradient to judge";
  if (grounds.gradients == 0) return text;
  return text + fmt::format("{}{} of {} gradients not all zero", text.empty() ? "" : ", ",
                            grounds.gradients_not_zero, grounds.gradients);
}

std::string zeros_text(const Grounds& grounds) {
  if (!grounds.is_empty) return "";
  if (grounds.proves)
    return "all outputs and gradients are 0, so a match would show nothing of them";
  return (grounds.gradients > 0
              ? fmt::format("{}all {} gradients are 0", grounds.has_loss ? "" : "the loss and ",
                            grounds.gradients)
              : std::string("the loss, or without one all logprobs, are 0")) +
         ", so a match would show nothing of them";
}

std::string roundings_text(const Grounds& grounds) {
  const int64_t count = grounds.gradients_of_roundings;
  if (count == 0 || count < grounds.gradients_not_zero) return "";
  return fmt::format(
      "the {} of {} that are not 0 are as small as roundings of the tensors beside them, so a "
      "match would show nothing of them; make the loss larger",
      count, count_of(grounds.gradients, "gradient"));
}

std::string empty_text(const Grounds& grounds) {
  if (!grounds.is_empty) return roundings_text(grounds);
  if (grounds.proves) {
    return zeros_text(grounds) + "; change options, or write expect: {nothing_counted: true}";
  }
  if (grounds.has_loss) {
    return zeros_text(grounds) +
           "; let the loss depend on the parameters, or write expect: {nothing_counted: true}";
  }
  return (grounds.scored_tokens > 0 ? "" : "no token counts: ") + zeros_text(grounds) +
         "; let a token count "
         "(data.token_mask_probability, data.dropped_samples, data.lengths above 1; in a batch "
         "file "
         "token_mask, sample_mask, advantages), or write expect: {nothing_counted: true}";
}

std::string nothing_judged_text(const Account& account) {
  if (account.elements.judged > 0 || account.unresolved.empty()) return "";
  return "no value could be judged: " + account.unresolved.front().reason;
}

std::string not_judged_text(const Account& account) {
  if (account.not_judged.empty()) return "";
  const UnjudgedTensor& first = account.not_judged.front();
  if (first.tensor.empty()) return first.reason + ": what it holds was not judged";
  return fmt::format("{} of {} tensors were not judged; the first: {} elements of {}, because {}",
                     account.not_judged.size(), account.all_tensors, first.elements, of_step(first),
                     first.reason);
}

}  // namespace shardproof::sim::judge
