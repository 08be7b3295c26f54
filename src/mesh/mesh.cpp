// The innermost axis varies fastest: rank = ((dp_rank * cp + cp_rank) * ulysses + ulysses_rank) *
// tp + tp_rank.
#include "mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

#include "base/checked.h"
#include "base/error.h"

namespace shardproof {
namespace {

constexpr const char* kExample = "write sizes as in --mesh dp=2,tp=3";

[[noreturn]] void refuse_mesh(std::string what, std::string fix = kExample) {
  throw_bad_input(std::move(what), std::move(fix));
}

void check_axes(const std::vector<MeshAxis>& axes) {
  int64_t world_size = 1;
  for (size_t i = 0; i < axes.size(); ++i) {
    const MeshAxis& axis = axes[i];
    if (axis.size < 1) {
      refuse_mesh(fmt::format("mesh axis {}={} is below 1", axis.name, axis.size));
    }
    for (size_t j = 0; j < i; ++j) {
      if (axes[j].name == axis.name) {
        refuse_mesh(fmt::format("mesh axis '{}' is named twice", axis.name), "name each axis once");
      }
    }
    const auto product = checked_multiply(world_size, axis.size);
    if (!product || *product > Mesh::kMaxWorldSize) {
      refuse_mesh(fmt::format("a mesh of more than {} ranks ({} x {}={})", Mesh::kMaxWorldSize,
                              world_size, axis.name, axis.size),
                  "make its axes smaller");
    }
    world_size = *product;
  }
}

std::string_view trim(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

void check_parts(const std::vector<MeshPart>& parts, int64_t world_size) {
  for (const MeshPart& part : parts) {
    const auto ranks = checked_multiply(part.stride, part.size);
    if (part.stride >= 1 && part.size >= 1 && ranks && world_size % *ranks == 0) continue;
    refuse_mesh(fmt::format("mesh part {} of {} ranks, {} apart, does not divide {} ranks",
                            part.name, part.size, part.stride, world_size),
                "choose sizes whose product divides the ranks");
  }
}

int64_t parse_size(std::string_view axis, std::string_view text) {
  int64_t size = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (status == std::errc::result_out_of_range) {
    refuse_mesh(fmt::format("mesh size '{}={}' is larger than any world", axis, text));
  }
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) {
    refuse_mesh(fmt::format("mesh size '{}={}' is not a whole number", axis, text));
  }
  return size;
}

int64_t AxisSizes::*size_named(std::string_view name) {
  std::vector<std::string> names = axis_names();
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (name == axis.name) return axis.size;
  }
  for (const ExpertPart& part : kExpertParts) {
    if (name == part.name) return part.size;
    names.emplace_back(part.name);
  }
  const std::string near = nearest_name(std::string(name), names);
  refuse_mesh(fmt::format("unknown mesh axis '{}'", name),
              fmt::format("{} axes are {}",
                          near.empty() ? "the" : fmt::format("did you mean '{}'? The", near),
                          fmt::join(names, ", ")));
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes, std::vector<MeshPart> parts)
    : axes_(std::move(axes)), parts_(std::move(parts)) {
  check_axes(axes_);
  check_parts(parts_, world_size());
}

Mesh Mesh::training(const AxisSizes& sizes) {
  std::vector<MeshAxis> axes;
  for (const TrainingAxis& axis : kTrainingAxes) axes.push_back({axis.name, sizes.*axis.size});
  Mesh mesh(axes);
  if (sizes.ep == 1 && sizes.etp == 1) return mesh;
  const int64_t ranks = mesh.world_size() / sizes.pp;
  const auto held = checked_multiply(sizes.ep, sizes.etp);
  if (sizes.ep < 1 || sizes.etp < 1 || !held || ranks % *held != 0) {
    std::vector<int64_t> working;
    for (int64_t size = 1; size <= ranks; ++size) {
      if (ranks % size == 0) working.push_back(size);
    }
    refuse_mesh(fmt::format("ep={} times etp={} does not divide the {} ranks that hold a layer",
                            sizes.ep, sizes.etp, ranks),
                fmt::format("choose sizes whose product is {}", fmt::join(working, ", ")));
  }
  return Mesh(axes,
              {{"edp", *held, ranks / *held}, {"ep", sizes.etp, sizes.ep}, {"etp", 1, sizes.etp}});
}

Mesh Mesh::parse(std::string_view text) {
  AxisSizes sizes;
  std::set<std::string_view> named;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const std::string_view item = trim(text.substr(begin, comma - begin));
    begin = comma + 1;
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos) {
      refuse_mesh(fmt::format("mesh '{}': '{}' is not axis=size", text, item));
    }
    const std::string_view name = trim(item.substr(0, equals));
    int64_t AxisSizes::*const size = size_named(name);
    if (!named.insert(name).second)
      refuse_mesh(fmt::format("mesh axis '{}' is named twice", name), "name each axis once");
    sizes.*size = parse_size(name, trim(item.substr(equals + 1)));
  }
  return training(sizes);
}

int64_t Mesh::world_size() const {
  int64_t product = 1;
  for (const auto& axis : axes_) product *= axis.size;
  return product;
}

std::vector<std::string> Mesh::names() const {
  std::vector<std::string> names;
  for (const MeshAxis& axis : axes_) {
    if (axis.size > 1) names.push_back(axis.name);
  }
  for (const MeshPart& part : parts_) {
    if (part.size > 1) names.push_back(part.name);
  }
  return names;
}

std::vector<Mesh::Digit> Mesh::digits_of(std::string_view name) const {
  for (const MeshPart& part : parts_) {
    if (part.name == name) return {{part.stride, part.size}};
  }
  const size_t end = std::min(name.find_first_of("%/"), name.size());
  const std::string axes = fmt::format("+{}+", name.substr(0, end));
  const auto is_named = [&axes](const std::string& axis) {
    return axes.find("+" + axis + "+") != axes.npos;
  };
  std::vector<Digit> digits;  // inner to outer; neighbors become one
  int64_t stride = 1;
  for (auto axis = axes_.rbegin(); axis != axes_.rend(); stride *= axis++->size) {
    if (axis->size == 1 || !is_named(axis->name)) continue;
    if (!digits.empty() && digits.back().stride * digits.back().size == stride) {
      digits.back().size *= axis->size;
    } else {
      digits.push_back({stride, axis->size});
    }
  }
  for (const MeshPart& part : parts_) {
    if (part.size > 1 && is_named(part.name)) digits.push_back({part.stride, part.size});
  }
  if (end < name.size()) {
    const bool within = name[end] == '%';
    int64_t block = parse_size(name, name.substr(name.find_first_not_of("%/", end)));
    std::vector<Digit> inner, outer;
    for (const Digit& digit : digits) {
      const int64_t taken = std::gcd(block, digit.size);
      SHARDPROOF_ASSERT(taken == block || taken == digit.size,
                        fmt::format("{} of {}", name, describe()));
      if (taken > 1) inner.push_back({digit.stride, taken});
      if (taken < digit.size) outer.push_back({digit.stride * taken, digit.size / taken});
      block /= taken;
    }
    SHARDPROOF_ASSERT(block == 1, fmt::format("{} of {}", name, describe()));
    digits = within ? inner : outer;
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

int64_t Mesh::size(std::string_view axis) const {
  int64_t product = 1;
  for (const auto& [stride, size] : digits_of(axis)) product *= size;
  return product;
}

int64_t Mesh::coordinate(std::string_view axis, int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size(),
                    fmt::format("rank {} of {}", rank, describe()));
  int64_t stride_of_axis = 1;  // most names are those of an axis
  for (auto it = axes_.rbegin(); it != axes_.rend(); stride_of_axis *= it++->size) {
    if (it->name == axis) return rank / stride_of_axis % it->size;
  }
  int64_t coordinate = 0;
  for (const auto& [stride, size] : digits_of(axis)) {
    coordinate = coordinate * size + rank / stride % size;
  }
  return coordinate;
}

std::vector<int64_t> Mesh::coordinates(std::string_view axis) const {
  std::vector<int64_t> coordinates(static_cast<size_t>(world_size()));
  for (const auto& [stride, size] : digits_of(axis)) {
    for (size_t rank = 0; rank < coordinates.size(); ++rank) {
      coordinates[rank] = coordinates[rank] * size + static_cast<int64_t>(rank) / stride % size;
    }
  }
  return coordinates;
}

std::vector<int64_t> Mesh::peers_along(std::string_view axis, int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size(),
                    fmt::format("rank {} of {}", rank, describe()));
  std::vector<int64_t> peers = {rank};
  for (const auto& [stride, size] : digits_of(axis)) {
    std::vector<int64_t> next;
    for (const int64_t peer : peers) {
      const int64_t first = peer - peer / stride % size * stride;
      for (int64_t c = 0; c < size; ++c) next.push_back(first + c * stride);
    }
    peers = std::move(next);
  }
  return peers;
}

std::vector<int64_t> Mesh::peers_along(const std::vector<std::string>& axes, int64_t rank) const {
  std::set<int64_t> peers = {rank};
  for (const std::string& axis : axes) {
    std::set<int64_t> next;
    for (const int64_t peer : peers) {
      const std::vector<int64_t> along = peers_along(axis, peer);
      next.insert(along.begin(), along.end());
    }
    peers = std::move(next);
  }
  return {peers.begin(), peers.end()};
}

std::string Mesh::describe() const {
  std::string text;
  for (const auto& axis : axes_) {
    if (axis.size == 1) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name, axis.size);
  }
  if (text.empty()) return "one rank";
  std::string experts;
  for (const MeshPart& part : parts_) {
    if (part.size > 1) experts += fmt::format(" {}={}", part.name, part.size);
  }
  return experts.empty() ? text : fmt::format("{}, experts{}", text, experts);
}

}  // namespace shardproof
