#include "sim/judge/diff/evidence.h"

#include <fmt/format.h>

namespace shardproof::sim::judge {

namespace {

std::string words(const EqualsStep& found) {
  return fmt::format("equals the golden of step {}: {}", found.step,
                     found.is_later ? "it was advanced too early" : "stale, it was not updated");
}

std::string words(const PartEqualsStep& found) {
  return fmt::format(
      "equals the golden of step {} wherever it is wrong: a part is stale, it was not updated",
      found.step);
}

std::string words(const SumOfSteps& found) {
  return fmt::format("is the golden of steps {} and {} added up: it was not reset between them",
                     found.before, found.now);
}

std::string words(const ShareOfUpdate& found) {
  return fmt::format(
      "moved by {:.3g} x the golden's update: the learning rate, or another setting of the "
      "optimizer, is wrong",
      found.share);
}

std::string words(const EqualsTensor& found) { return "equals the golden's " + found.name; }

std::string words(const ValuesOf& found) { return "every value is exactly a " + found.dtype; }

std::string words(const AddendsThrough& found) {
  return fmt::format(
      "every value is exactly a float32, and off by as much as {0} rounds: its addends went "
      "through {0}",
      found.dtype);
}

template <class Found>
std::string words(const Found&) {
  return "";
}

}  // namespace

std::string text_of(const Evidence& evidence) {
  return std::visit([](const auto& found) { return words(found); }, evidence);
}

}  // namespace shardproof::sim::judge
