// The experts to which the tokens of two files of logprobs were sent. NAME.routes.safetensors
// beside NAME.safetensors has
//
//   routes     [L, B, S, K]  integers; the experts of position [b, s] in the l-th layer that has a
//                            router, in any order; -1: none, or not recorded
//   metadata   layers        optional: the numbers of these layers, such as "1,2,3"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardproof::sim::logprobs {

struct Comparison;

// Where a token was sent elsewhere.
struct Reroute {
  int64_t row, position, layer;         // the number of the layer
  std::vector<int64_t> from_a, from_b;  // ids, ascending
};

struct Routes {
  std::string only;                // "A" or "B" where one file alone has routes; the rest is empty
  int64_t layers = 0;              // that have a router
  int64_t compared = 0;            // positions that count and have routes in both files
  int64_t elsewhere = 0;           // those with other experts in some layer
  std::vector<int64_t> in_layers;  // the numbers of these layers, ascending
  std::optional<Reroute> first;    // in the order of the batch, then of the layers
  std::vector<char> is_elsewhere;  // [B, S]
  // A rule by which the routes of B follow from those of A, where most do: "B[t] is A[t + 1]"; "".
  std::string rule;
};

// The file of routes beside a file of logprobs.
std::string routes_path(const std::string& logprobs_path);
bool is_routes_file(const std::string& path);

// Empty where neither file has routes. `counts` is [B, S]. Throws Error(kBadInput) for routes that
// do not fit the logprobs or each other.
std::optional<Routes> read_routes(const std::string& path_a, const std::string& path_b,
                                  int64_t rows, int64_t length, const std::vector<char>& counts);

// The tokens by the routes of what they were computed from: a token at t is scored from position
// t - 1 of its segment.
struct RouteClass {
  int64_t tokens = 0;
  double mean = 0, largest = 0;  // of |b - a|
  bool is_noise = true;
};
struct RouteSplit {
  RouteClass elsewhere;  // scored from a position with other routes
  RouteClass behind;     // not that, but behind such a position in their segment
  RouteClass equal;      // the others
};
// One number for each token of the comparison: 2 elsewhere, 1 behind, 0 equal.
std::vector<char> classes_of_tokens(const Comparison& comparison, const Routes& routes);
RouteSplit split_by_routes(const Comparison& comparison, const Routes& routes);

// "37 of 8192 positions were routed elsewhere, ..".
std::string routes_text(const Routes& routes);
std::string split_text(const RouteSplit& split);

}  // namespace shardproof::sim::logprobs
