#include "sim/uses/validate/exchange.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof::sim::validate {
namespace {

constexpr int64_t kMostElements = 1 << 17;  // of all members' rows together
constexpr size_t kSampled = 64;             // wrong elements that a claim must explain
constexpr int64_t kMargin = 3;              // elements before a row, so that it is not aligned

at::ScalarType dtype_of(ElementType type) {
  constexpr std::array<at::ScalarType, 9> kTypes = {at::kDouble,   at::kFloat, at::kHalf,
                                                    at::kBFloat16, at::kLong,  at::kInt,
                                                    at::kChar,     at::kByte,  at::kBool};
  return kTypes.at(static_cast<size_t>(type));
}

at::Tensor bits_of(const at::Tensor& tensor) {
  switch (tensor.element_size()) {
    case 8:
      return tensor.view(at::kLong);
    case 4:
      return tensor.view(at::kInt);
    case 2:
      return tensor.view(at::kShort);
    default:
      return tensor.view(at::kByte);
  }
}

int64_t sum_of(const std::vector<int64_t>& sizes, int64_t count) {
  return std::accumulate(sizes.begin(), sizes.begin() + count, int64_t{0});
}

bool tells_more(const WrongPattern& pattern) {
  return pattern.shape == Shape::kSector || pattern.shape == Shape::kLane ||
         pattern.shape == Shape::kAll;
}

template <class Value>
bool wanted(const std::vector<Value>& chosen, Value value) {
  return chosen.empty() || std::find(chosen.begin(), chosen.end(), value) != chosen.end();
}

std::vector<ElementType> all_types() {
  std::vector<ElementType> types;
  for (const std::string& name : all_names<ElementType>()) {
    types.push_back(enum_of<ElementType>(name));
  }
  return types;
}

}  // namespace

// One call. `root` is a position in the group.
struct Exchange::Check {
  Op op = Op::kBarrier;
  std::optional<ReduceOp> reduce = {};
  ElementType type = {};
  int64_t round = 0;
  int64_t root = 0;
  std::vector<int64_t> ranks = {};
  std::string name = {};  // of the group
  int64_t count = 0;
  CodeKey key = {};
  std::string text = {};
  int64_t members() const { return static_cast<int64_t>(ranks.size()); }
};

Exchange::Exchange(const Suite& suite, int64_t rank, int64_t world_size, const std::string& device)
    : suite_(suite), rank_(rank), world_size_(world_size), device_(device) {}

int64_t Exchange::drawn_size(const Check& check) const {
  const uint64_t draw = mix_bits(check.key.seed ^ mix_bits(static_cast<uint64_t>(check.round) + 7));
  const int64_t size = suite_.sizes[draw % suite_.sizes.size()];
  return std::max<int64_t>(1, std::min(size, kMostElements / check.members()));
}

// Unequal ones in every second round.
std::vector<int64_t> Exchange::sizes_for(const Check& check) const {
  std::vector<int64_t> sizes;
  for (int64_t member = 0; member < check.members(); ++member) {
    sizes.push_back(check.count + (check.round % 2 == 0 ? member % 3 : 0));
  }
  return sizes;
}

void Exchange::run_group(Communicator& group, int64_t round) {
  const auto run = [&](Op op, std::optional<ReduceOp> reduce, ElementType type) {
    Check check{.op = op, .reduce = reduce, .type = type, .round = round};
    run_check(group, std::move(check));
  };
  for (const ElementType type : all_types()) {
    if (!wanted(suite_.dtypes, type)) continue;
    for (const Op op : {Op::kAllReduce, Op::kReduceScatter}) {
      if (!wanted(suite_.ops, op)) continue;
      for (const std::string& name : all_names<ReduceOp>()) {
        run(op, enum_of<ReduceOp>(name), type);
      }
    }
    for (const Op op : {Op::kAllGather, Op::kAllToAll, Op::kBroadcast, Op::kScatter, Op::kGather}) {
      if (wanted(suite_.ops, op)) run(op, std::nullopt, type);
    }
  }
  if (wanted(suite_.ops, Op::kBarrier)) group.barrier("validate barrier");
}

void Exchange::run_check(Communicator& group, Check check) {
  const std::string op =
      check.reduce ? fmt::format("{}({})", check.op, *check.reduce) : name_of(check.op);
  check.ranks = group.ranks();
  check.name = group.axis();
  if (check.reduce && !can_reduce(check.type, *check.reduce, check.members())) {
    const bool meaningless = *check.reduce == ReduceOp::kAvg && !is_float(check.type);
    if (!meaningless) {
      report_.left_out.push_back(fmt::format("{} {} in {}: no exact codes for {} members", op,
                                             check.type, check.name, check.members()));
    }
    return;
  }
  check.key = {
      .seed = stream_seed(suite_.seed, fmt::format("{} {} {}", check.name, op, check.type)),
      .round = check.round,
      .type = check.type};
  check.count = drawn_size(check);
  check.root = static_cast<int64_t>(mix_bits(check.key.seed + static_cast<uint64_t>(check.round)) %
                                    static_cast<uint64_t>(check.members()));
  check.text = fmt::format("{} {} {} [{}] round {}", op, group_name(check.name, check.ranks),
                           check.type, check.count, check.round);
  ++report_.checks;
  if (check.reduce) {
    run_reduction(group, check);
  } else {
    run_movement(group, check);
  }
}

at::Tensor Exchange::placed(const std::vector<int64_t>& values, ElementType type) const {
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor memory =
      at::zeros({count + kMargin}, at::TensorOptions(dtype_of(type)).device(at::Device(device_)));
  const at::Tensor row = memory.narrow(0, 1 + count % kMargin, count);
  row.copy_(at::tensor(values, at::kLong).to(dtype_of(type)));
  return row;
}

at::Tensor Exchange::row(const Check& check, int64_t rank, int64_t count) const {
  std::vector<int64_t> values(static_cast<size_t>(count));
  for (int64_t at = 0; at < count; ++at) {
    values[static_cast<size_t>(at)] = moved_code(check.key, rank, at);
  }
  return placed(values, check.type);
}

void Exchange::run_reduction(Communicator& group, const Check& check) {
  const std::vector<int64_t> sizes = sizes_for(check);
  const bool scatters = check.op == Op::kReduceScatter;
  const int64_t total = scatters ? sum_of(sizes, check.members()) : check.count;
  std::vector<int64_t> values(static_cast<size_t>(total));
  for (int64_t at = 0; at < total; ++at) {
    values[static_cast<size_t>(at)] =
        addend_code(check.key, *check.reduce, group.rank(), check.members(), rank_, at);
  }
  const at::Tensor addends = placed(values, check.type);
  const std::string label = "validate " + check.text;
  if (scatters) {
    const at::Tensor part = group.reduce_scatter(addends, 0, *check.reduce, label, sizes);
    expect_reduced(check, part, sum_of(sizes, group.rank()), total);
  } else {
    expect_reduced(check, group.all_reduce(addends, *check.reduce, label), 0, total);
  }
}

void Exchange::run_movement(Communicator& group, const Check& check) {
  const int64_t own = group.rank(), members = check.members();
  const std::vector<int64_t> sizes = sizes_for(check);
  const auto size_of = [&](int64_t member) { return sizes[static_cast<size_t>(member)]; };
  const auto rank_of = [&](int64_t member) { return check.ranks[static_cast<size_t>(member)]; };
  const std::string label = "validate " + check.text;
  const int64_t root = check.root;
  const int64_t total = sum_of(sizes, members);
  const auto expect_all = [&](const at::Tensor& received) {
    for (int64_t from = 0; from < members; ++from) {
      expect_moved(check, received, sum_of(sizes, from), size_of(from), rank_of(from));
    }
  };
  switch (check.op) {
    case Op::kAllGather: {
      const at::Tensor into = placed(std::vector<int64_t>(static_cast<size_t>(total)), check.type);
      expect_all(group.all_gather_into(into, row(check, rank_, size_of(own)), 0, label, sizes));
      return;
    }
    case Op::kGather: {
      const at::Tensor all = group.gather(row(check, rank_, size_of(own)), root, label, sizes);
      if (own == root) expect_all(all);
      return;
    }
    case Op::kBroadcast: {
      const at::Tensor buffer =
          own == root ? row(check, rank_, check.count)
                      : placed(std::vector<int64_t>(static_cast<size_t>(check.count)), check.type);
      group.broadcast_into(buffer, root, label);
      expect_moved(check, buffer, 0, check.count, rank_of(root));
      return;
    }
    case Op::kScatter: {
      const at::Tensor full = own == root ? row(check, rank_, total) : at::Tensor();
      const at::Tensor like =
          placed(std::vector<int64_t>(static_cast<size_t>(size_of(own))), check.type);
      expect_moved(check, group.scatter(full, like, root, label, sizes), 0, size_of(own),
                   rank_of(root), sum_of(sizes, own));
      return;
    }
    default:
      break;
  }
  // all_to_all: member i sends member j so many elements.
  const auto part = [&](int64_t from, int64_t to) {
    return 1 + check.count / members + (from + 2 * to + check.round) % 3;
  };
  std::vector<int64_t> in, out;
  for (int64_t other = 0; other < members; ++other) {
    in.push_back(part(own, other));
    out.push_back(part(other, own));
  }
  const at::Tensor received =
      group.all_to_all(row(check, rank_, sum_of(in, members)), label, in, out);
  for (int64_t from = 0; from < members; ++from) {
    int64_t first = 0;
    for (int64_t to = 0; to < own; ++to) first += part(from, to);
    expect_moved(check, received, sum_of(out, from), part(from, own), rank_of(from), first);
  }
}

void Exchange::run_pair(Communicator& group, int64_t place, int64_t round) {
  const int64_t partner = group.ranks()[static_cast<size_t>(place)];
  for (const ElementType type : all_types()) {
    if (!wanted(suite_.dtypes, type)) continue;
    Check check{.op = Op::kSend, .type = type, .round = round, .ranks = {rank_, partner}};
    check.key = {.seed = stream_seed(suite_.seed, fmt::format("pair {}", type)),
                 .round = round,
                 .type = type};
    check.count = drawn_size(check);
    const auto text = [&](int64_t from, int64_t to) {
      return fmt::format("send {} -> {} {} [{}] round {}", from, to, type, check.count, round);
    };
    const auto send = [&] {
      group.send(row(check, rank_, check.count), place, "validate " + text(rank_, partner));
    };
    const auto receive = [&] {
      check.text = text(partner, rank_);
      ++report_.checks;
      const at::Tensor like = placed(std::vector<int64_t>(static_cast<size_t>(check.count)), type);
      expect_moved(check, group.recv(like, place, "validate " + check.text), 0, check.count,
                   partner);
    };
    if (rank_ < partner) send();
    receive();
    if (rank_ > partner) send();
  }
}

std::vector<WrongElement> Exchange::compare(const at::Tensor& received,
                                            const std::vector<int64_t>& expected,
                                            ElementType type) {
  report_.elements += static_cast<int64_t>(expected.size());
  const at::Tensor here = received.detach().to(at::kCPU).contiguous();
  const at::Tensor right = at::tensor(expected, at::kLong).to(dtype_of(type));
  const at::Tensor differs = bits_of(here).ne(bits_of(right));
  std::vector<WrongElement> wrong;
  if (!differs.any().item<bool>()) return wrong;
  const at::Tensor values = here.to(at::kDouble), places = differs.nonzero().view({-1});
  for (int64_t i = 0; i < places.numel(); ++i) {
    const auto place = places[i].item<int64_t>();
    wrong.push_back({.position = place,
                     .expected = expected[static_cast<size_t>(place)],
                     .received = values[place].item<double>()});
  }
  return wrong;
}

// Whether the result that is wrong is evidence: so many tell no more than the first ones.
bool Exchange::is_evidence() {
  ++report_.wrong_checks;
  return report_.evidence.size() < kMaxEvidence;
}

// The sender's buffer holds these elements from `first` on.
void Exchange::expect_moved(const Check& check, const at::Tensor& received, int64_t at,
                            int64_t count, int64_t sender, int64_t first) {
  std::vector<int64_t> expected(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    expected[static_cast<size_t>(i)] = moved_code(check.key, sender, first + i);
  }
  std::vector<WrongElement> wrong = compare(received.narrow(0, at, count), expected, check.type);
  if (wrong.empty() || !is_evidence()) return;
  std::vector<int64_t> in_part, in_sent, in_received;
  for (const WrongElement& element : wrong) {
    in_part.push_back(element.position);
    in_sent.push_back(element.position + first);
    in_received.push_back(element.position + at);
  }
  const int64_t bytes = bytes_of(check.type);
  WrongPattern pattern = pattern_of(in_part, count, bytes);
  for (const auto& [positions, all] :
       {std::pair(in_sent, first + count), std::pair(in_received, received.numel())}) {
    if (tells_more(pattern)) break;
    const WrongPattern other = pattern_of(positions, all, bytes);
    if (tells_more(other)) pattern = other;
  }
  for (WrongElement& element : wrong) element.position += first;
  if (wrong.size() > kSampled) wrong.resize(kSampled);
  const Source source = source_of_moved(check.key, sender, first + count, world_size_, wrong);
  report_.evidence.push_back({.call = check.text,
                              .receiver = rank_,
                              .group = check.ranks,
                              .sender = sender,
                              .damage = name_of(source.damage),
                              .pattern = pattern.text(),
                              .text = source.text,
                              .wrong = static_cast<int64_t>(in_part.size())});
}

// The elements from `first` on of a reduction of buffers of `buffer` elements.
void Exchange::expect_reduced(const Check& check, const at::Tensor& received, int64_t first,
                              int64_t buffer) {
  std::vector<int64_t> expected, addends(check.ranks.size());
  for (int64_t i = 0; i < received.numel(); ++i) {
    for (int64_t member = 0; member < check.members(); ++member) {
      addends[static_cast<size_t>(member)] =
          addend_code(check.key, *check.reduce, member, check.members(),
                      check.ranks[static_cast<size_t>(member)], first + i);
    }
    expected.push_back(reduced_code(check.type, *check.reduce, addends, check.members()));
  }
  std::vector<WrongElement> wrong = compare(received, expected, check.type);
  if (wrong.empty() || !is_evidence()) return;
  std::vector<int64_t> positions;
  for (WrongElement& element : wrong) {
    positions.push_back(element.position);
    element.position += first;
  }
  const WrongPattern pattern = pattern_of(positions, received.numel(), bytes_of(check.type));
  if (wrong.size() > kSampled) wrong.resize(kSampled);
  const Source source = source_of_reduced(check.key, *check.reduce, check.ranks, buffer, wrong);
  report_.evidence.push_back({.call = check.text,
                              .receiver = rank_,
                              .group = check.ranks,
                              .sources = source.ranks,
                              .damage = name_of(source.damage),
                              .pattern = pattern.text(),
                              .text = source.text,
                              .wrong = static_cast<int64_t>(positions.size())});
}

}  // namespace shardproof::sim::validate
