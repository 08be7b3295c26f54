// The innermost axis varies fastest: rank = ((dp_rank * cp + cp_rank) * ulysses + ulysses_rank) *
// tp + tp_rank.
#include "mesh/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
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

int64_t parse_size(std::string_view axis, std::string_view text) {
  int64_t size = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (status == std::errc::result_out_of_range) {
    refuse_mesh(fmt::format("mesh size '{}={}' is larger than any world", axis, text));
  }
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) {
    refuse_mesh(fmt::format("mesh size '{}={}' is no whole number", axis, text));
  }
  return size;
}

// An axis made of others, or a part of it (see mesh.h).
struct FlattenedAxis {
  enum class Part { kWhole, kWithinBlock, kBlock };
  std::vector<std::string> axes;
  Part part = Part::kWhole;
  int64_t block = 1;
};

bool is_flattened(std::string_view axis) {
  return axis.find_first_of("+%/") != std::string_view::npos;
}

FlattenedAxis parse_flattened(std::string_view text) {
  FlattenedAxis flat;
  const size_t end = std::min(text.find_first_of("%/"), text.size());
  if (end < text.size()) {
    flat.part = text[end] == '%' ? FlattenedAxis::Part::kWithinBlock : FlattenedAxis::Part::kBlock;
    flat.block = parse_size(text, text.substr(text.find_first_not_of("%/", end)));
  }
  for (size_t begin = 0; begin <= end;) {
    const size_t plus = std::min(text.find('+', begin), end);
    flat.axes.emplace_back(text.substr(begin, plus - begin));
    begin = plus + 1;
  }
  return flat;
}

const TrainingAxis& training_axis(std::string_view name) {
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (name == axis.name) return axis;
  }
  const std::vector<std::string> names = axis_names();
  const std::string near = nearest_name(std::string(name), names);
  refuse_mesh(fmt::format("unknown mesh axis '{}'", name),
              fmt::format("{} axes are {}",
                          near.empty() ? "the" : fmt::format("did you mean '{}'? The", near),
                          fmt::join(names, ", ")));
}

}  // namespace

Mesh::Mesh(std::vector<MeshAxis> axes) : axes_(std::move(axes)) { check_axes(axes_); }

Mesh Mesh::training(const AxisSizes& sizes) {
  std::vector<MeshAxis> axes;
  for (const TrainingAxis& axis : kTrainingAxes) axes.push_back({axis.name, sizes.*axis.size});
  return Mesh(axes);
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
    const TrainingAxis& axis = training_axis(name);
    if (!named.insert(name).second)
      refuse_mesh(fmt::format("mesh axis '{}' is named twice", name), "name each axis once");
    sizes.*axis.size = parse_size(name, trim(item.substr(equals + 1)));
  }
  return training(sizes);
}

int64_t Mesh::world_size() const {
  int64_t product = 1;
  for (const auto& axis : axes_) product *= axis.size;
  return product;
}

int64_t Mesh::size(std::string_view axis) const {
  for (const auto& candidate : axes_) {
    if (candidate.name == axis) return candidate.size;
  }
  if (!is_flattened(axis)) return 1;
  const FlattenedAxis flat = parse_flattened(axis);
  int64_t product = 1;
  for (const std::string& name : flat.axes) product *= size(name);
  if (flat.part == FlattenedAxis::Part::kWhole) return product;
  SHARDPROOF_ASSERT(product % flat.block == 0, fmt::format("{} of {}", axis, describe()));
  return flat.part == FlattenedAxis::Part::kWithinBlock ? flat.block : product / flat.block;
}

int64_t Mesh::coordinate(std::string_view axis, int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size(),
                    fmt::format("rank {} of {}", rank, describe()));
  if (is_flattened(axis)) return flattened_coordinate(axis, rank);
  for (auto it = axes_.rbegin(); it != axes_.rend(); ++it) {
    if (it->name == axis) return rank % it->size;
    rank /= it->size;
  }
  return 0;
}

int64_t Mesh::flattened_coordinate(std::string_view axis, int64_t rank) const {
  const FlattenedAxis flat = parse_flattened(axis);
  int64_t coordinate_of_all = 0;
  for (const auto& candidate : axes_) {
    if (std::find(flat.axes.begin(), flat.axes.end(), candidate.name) == flat.axes.end()) continue;
    coordinate_of_all = coordinate_of_all * candidate.size + coordinate(candidate.name, rank);
  }
  switch (flat.part) {
    case FlattenedAxis::Part::kWhole:
      return coordinate_of_all;
    case FlattenedAxis::Part::kWithinBlock:
      return coordinate_of_all % flat.block;
    case FlattenedAxis::Part::kBlock:
      return coordinate_of_all / flat.block;
  }
  return 0;
}

int64_t Mesh::rank_at(const std::vector<int64_t>& coordinates) const {
  SHARDPROOF_ASSERT(coordinates.size() == axes_.size(),
                    fmt::format("{} coordinates for {} axes", coordinates.size(), axes_.size()));
  int64_t rank = 0;
  for (size_t i = 0; i < axes_.size(); ++i) {
    SHARDPROOF_ASSERT(
        coordinates[i] >= 0 && coordinates[i] < axes_[i].size,
        fmt::format("coordinate {} on {}={}", coordinates[i], axes_[i].name, axes_[i].size));
    rank = rank * axes_[i].size + coordinates[i];
  }
  return rank;
}

std::vector<int64_t> Mesh::peers_along(std::string_view axis, int64_t rank) const {
  if (!is_flattened(axis)) return peers_along(std::vector<std::string>{std::string(axis)}, rank);
  const FlattenedAxis flat = parse_flattened(axis);
  std::vector<int64_t> peers = peers_along(flat.axes, rank);
  if (flat.part == FlattenedAxis::Part::kWhole) return peers;
  const std::string fixed =
      fmt::format("{}{}{}", fmt::join(flat.axes, "+"),
                  flat.part == FlattenedAxis::Part::kWithinBlock ? "//" : "%", flat.block);
  const int64_t own = coordinate(fixed, rank);
  std::erase_if(peers, [&](int64_t peer) { return coordinate(fixed, peer) != own; });
  return peers;
}

std::vector<int64_t> Mesh::peers_along(const std::vector<std::string>& axes, int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size(),
                    fmt::format("rank {} of {}", rank, describe()));
  const auto varies = [&](const MeshAxis& axis) {
    return std::find(axes.begin(), axes.end(), axis.name) != axes.end();
  };
  std::vector<int64_t> peers = {0};  // built from outer to inner, so in ascending order
  for (const auto& axis : axes_) {
    const int64_t own = coordinate(axis.name, rank);
    std::vector<int64_t> next;
    for (const int64_t peer : peers) {
      for (int64_t c = varies(axis) ? 0 : own; c < (varies(axis) ? axis.size : own + 1); ++c) {
        next.push_back(peer * axis.size + c);
      }
    }
    peers = std::move(next);
  }
  return peers;
}

std::string Mesh::describe() const {
  std::string text;
  for (const auto& axis : axes_) {
    if (axis.size == 1) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", axis.name, axis.size);
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace shardproof
