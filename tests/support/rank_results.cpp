#include "tests/support/rank_results.h"

#include "base/error.h"

namespace shardproof::tests {

std::vector<NamedResults> on_every_rank(const Mesh& mesh,
                                        const std::function<NamedResults(MeshComm&, int64_t)>& work,
                                        decltype(run_emulated_ranks)* run) {
  std::vector<NamedResults> results(static_cast<size_t>(mesh.world_size()));
  run(mesh,
      [&](MeshComm& comm, int64_t rank) { results[static_cast<size_t>(rank)] = work(comm, rank); });
  return results;
}

std::vector<std::string> backward_after_the_end(
    const Mesh& mesh, const std::function<at::Tensor(MeshComm&, int64_t)>& forward) {
  std::vector<std::string> said(static_cast<size_t>(mesh.world_size()));
  run_emulated_ranks(mesh, [&](MeshComm& comm, int64_t rank) {
    at::Tensor result;
    {
      MeshComm brief = comm.on_mesh("brief", mesh);
      result = forward(brief, rank);
    }
    comm.world().barrier("the communicators have ended");
    try {
      result.sum().backward();
    } catch (const Error& error) {
      said[static_cast<size_t>(rank)] = error.what();
    }
  });
  return said;
}

std::vector<std::vector<std::string>> calls_of_ranks(const Mesh& mesh, const RankFunction& work) {
  std::vector<CallLog> logs(static_cast<size_t>(mesh.world_size()));
  std::vector<CallListener*> listeners;
  for (CallLog& log : logs) listeners.push_back(&log);
  rethrow_first(try_emulated_ranks(mesh, work, listeners));
  std::vector<std::vector<std::string>> calls;
  for (const CallLog& log : logs) calls.push_back(log.calls);
  return calls;
}

at::Tensor random_tensor(at::IntArrayRef shape, int64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::rand(shape, generator, at::TensorOptions().dtype(at::kDouble)) * 2 - 1;
}

std::string difference(const at::Tensor& golden, const at::Tensor& actual, double tolerance,
                       double scale) {
  if (!actual.defined()) return "no tensor";
  if (golden.sizes() != actual.sizes()) return "another shape";
  if (golden.scalar_type() != actual.scalar_type()) return "another dtype";
  if (golden.numel() == 0) return "";
  const double largest = std::max(golden.abs().max().item<double>(), scale);
  const double error = (golden - actual).abs().max().item<double>();
  if (error <= tolerance * largest) return "";
  return "differs by " + std::to_string(error) + " of " + std::to_string(largest);
}

}  // namespace shardproof::tests
