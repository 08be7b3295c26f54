#include "base/stage_layout.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr size_t kLongest = 100'000;  // of a layout with repetitions written out

class LayoutReader {
 public:
  explicit LayoutReader(const std::string& text) : text_(text) {}

  std::string read_all() {
    std::string all = read_row();
    if (at_ < text_.size()) fail("')' closes nothing", "give each ')' a '(' before it");
    return all;
  }

 private:
  bool sees(char wanted) const { return at_ < text_.size() && text_[at_] == wanted; }

  [[noreturn]] void fail(const std::string& fact, const std::string& fix) const {
    throw_bad_input(fmt::format("the layout '{}': {} at position {}", text_, fact, at_), fix);
  }

  // Items up to the end or a ')'.
  std::string read_row() {
    std::string row;
    while (at_ < text_.size() && !sees(')')) {
      if (sees(',')) {
        ++at_;
        continue;
      }
      const std::string item = read_item();
      for (int64_t i = read_count(); i > 0; --i) {
        if (row.size() + item.size() > kLongest) {
          fail(fmt::format("more than {} parts", kLongest), "repeat less often");
        }
        row += item;
      }
    }
    return row;
  }

  std::string read_item() {
    if (!sees('(')) {
      if (std::string_view("EtmL|").find(text_[at_]) == std::string_view::npos) {
        fail(fmt::format("'{}' is unknown", text_[at_]),
             "known are E, t, m, L, | and (..)*N, as in Ett|(tt|)*2ttL");
      }
      return {text_[at_++]};
    }
    if (nested_) fail("'(' inside of another '('", "write the inner repetition out");
    ++at_;
    nested_ = true;
    std::string row = read_row();
    nested_ = false;
    if (!sees(')')) fail("a ')' is missing", "give each '(' a ')' behind it");
    ++at_;
    if (!sees('*')) fail("a '*' is missing behind ')'", "give (..)*N");
    return row;
  }

  int64_t read_count() {
    if (!sees('*')) return 1;
    ++at_;
    int64_t count = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      count = count * 10 + (text_[at_++] - '0');
      if (count > static_cast<int64_t>(kLongest)) {
        fail(fmt::format("more than {} parts", kLongest), "repeat less often");
      }
    }
    if (count == 0) fail("a number of 1 or more is missing behind '*'", "give t*3 or (tt|)*2");
    return count;
  }

  const std::string& text_;
  size_t at_ = 0;
  bool nested_ = false;
};

}  // namespace

std::vector<std::string> read_layout(const std::string& layout) {
  std::vector<std::string> entries(1);
  for (const char part : LayoutReader(layout).read_all()) {
    if (part == '|') {
      entries.emplace_back();
    } else {
      entries.back() += part;
    }
  }
  return entries;
}

}  // namespace shardproof
