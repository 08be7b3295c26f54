// The text of a call line: fields are separated by tabs, and numbers by commas; tab, newline and
// backslash in names are escaped.
#include "sim/world/match/call_line.h"

#include <array>
#include <charconv>

namespace shardproof::sim {
namespace {

constexpr size_t kFieldCount = 18;

void append_text(std::string& out, const std::string& text) {
  for (const char c : text) {
    if (c == '\\')
      out += "\\\\";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  out += '\t';
}

void append_numbers(std::string& out, const std::vector<int64_t>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) out += ',';
    out += std::to_string(values[i]);
  }
  out += '\t';
}

bool read_text(std::string_view field, std::string& out) {
  out.clear();
  for (size_t i = 0; i < field.size(); ++i) {
    if (field[i] != '\\') {
      out += field[i];
      continue;
    }
    if (++i == field.size()) return false;
    if (field[i] == 't')
      out += '\t';
    else if (field[i] == 'n')
      out += '\n';
    else if (field[i] == '\\')
      out += '\\';
    else
      return false;
  }
  return true;
}

bool read_number(std::string_view field, int64_t& out) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), out);
  return error == std::errc() && end == field.data() + field.size();
}

bool read_numbers(std::string_view field, std::vector<int64_t>& out) {
  out.clear();
  while (!field.empty()) {
    const size_t comma = field.find(',');
    int64_t value = 0;
    if (!read_number(field.substr(0, comma), value)) return false;
    out.push_back(value);
    if (comma == std::string_view::npos) return true;
    field.remove_prefix(comma + 1);
    if (field.empty()) return false;
  }
  return true;
}

bool read_op(std::string_view field, Op& out) {
  const auto op = find_enum<Op>(field);
  if (op) out = *op;
  return op.has_value();
}

bool read_reduce(std::string_view field, std::optional<ReduceOp>& out) {
  out = find_enum<ReduceOp>(field);
  return out || field.empty();
}

bool read_flag(std::string_view field, bool& out) {
  out = field == "1";
  return out || field == "0";
}

}  // namespace

std::string encode_line(const CallLine& line) {
  std::string out;
  out.reserve(128 + line.label.size());
  append_numbers(out, {line.rank});
  append_numbers(out, line.group_ranks ? *line.group_ranks : std::vector<int64_t>{});
  append_text(out, line.group);
  append_numbers(out, {line.group_rank});
  append_numbers(out, {line.sequence});
  append_text(out, name_of(line.op));
  append_text(out, reduce_text(line));
  append_text(out, line.label);
  append_text(out, line.dtype);
  append_numbers(out, line.shape);
  append_numbers(out, line.strides);
  append_numbers(out, line.split_sizes);
  append_numbers(out, line.output_sizes);
  append_numbers(out, {line.dim});
  append_numbers(out, {line.root});
  append_numbers(out, {line.tag});
  append_numbers(out, {line.asynchronous ? 1 : 0});
  append_numbers(out, {line.waiting ? 1 : 0});
  out.pop_back();
  return out;
}

std::optional<CallLine> decode_line(std::string_view text) {
  std::array<std::string_view, kFieldCount> fields;
  for (size_t i = 0; i < kFieldCount; ++i) {
    const size_t tab = text.find('\t');
    if ((tab == std::string_view::npos) != (i + 1 == kFieldCount)) return std::nullopt;
    fields[i] = text.substr(0, tab);
    if (tab != std::string_view::npos) text.remove_prefix(tab + 1);
  }
  CallLine line;
  auto ranks = std::make_shared<std::vector<int64_t>>();
  const bool good =
      read_number(fields[0], line.rank) && read_numbers(fields[1], *ranks) &&
      read_text(fields[2], line.group) && read_number(fields[3], line.group_rank) &&
      read_number(fields[4], line.sequence) && read_op(fields[5], line.op) &&
      read_reduce(fields[6], line.reduce) && read_text(fields[7], line.label) &&
      read_text(fields[8], line.dtype) && read_numbers(fields[9], line.shape) &&
      read_numbers(fields[10], line.strides) && read_numbers(fields[11], line.split_sizes) &&
      read_numbers(fields[12], line.output_sizes) && read_number(fields[13], line.dim) &&
      read_number(fields[14], line.root) && read_number(fields[15], line.tag) &&
      read_flag(fields[16], line.asynchronous) && read_flag(fields[17], line.waiting);
  if (!good) return std::nullopt;
  line.group_ranks = std::move(ranks);
  return line;
}

}  // namespace shardproof::sim
