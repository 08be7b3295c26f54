// Memory for gathered tensors is reused, but never while a tensor needs it.
#include "collective/gather_buffer.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "tests/support/rank_results.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

at::Tensor part_of(int64_t rank) { return random_tensor({3, 4}, 20 + rank); }

at::Tensor all_parts(int64_t ranks, double factor) {
  std::vector<at::Tensor> parts;
  for (int64_t rank = 0; rank < ranks; ++rank) parts.push_back(part_of(rank) * factor);
  return at::cat(parts);
}

TEST_CASE("memory is lent again once no tensor on it lives, and not before", "[collective][SH-2]") {
  GatherBuffer buffer;
  const at::Tensor like = at::zeros({1}, at::kDouble);
  at::Tensor first = buffer.lend({6, 4}, like);
  const void* const memory = first.data_ptr();
  CHECK(first.sizes() == at::IntArrayRef({6, 4}));
  CHECK(first.is_contiguous());
  CHECK(first.scalar_type() == at::kDouble);
  CHECK(buffer.in_use() == 1);
  CHECK(buffer.lend({6, 4}, like).data_ptr() != memory);
  at::Tensor view = first.narrow(0, 2, 1).t();
  first = at::Tensor();
  CHECK(buffer.lend({2, 3}, like).data_ptr() != memory);  // a view still uses it
  CHECK(buffer.count() == 2);
  view = at::Tensor();
  CHECK(buffer.in_use() == 0);
  // The bytes are reused for another shape and dtype.
  const at::Tensor again = buffer.lend({3, 4}, at::zeros({1}, at::kBFloat16));
  const at::Tensor more = buffer.lend({6, 4}, like);
  CHECK((again.data_ptr() == memory || more.data_ptr() == memory));
  CHECK(buffer.count() == 2);
}

TEST_CASE("memory that is too small makes room for larger", "[collective][SH-2]") {
  GatherBuffer buffer;
  const at::Tensor like = at::zeros({1}, at::kFloat);
  for (const int64_t rows : {1, 5, 3, 8, 2}) buffer.lend({rows, 4}, like);
  CHECK(buffer.count() == 1);
  CHECK(buffer.bytes() == 8 * 4 * 4);
  CHECK(buffer.lend({0, 4}, like).numel() == 0);
}

TEST_CASE("what autograd saved was not written again by a later loan", "[collective][SH-2]") {
  GatherBuffer buffer;
  const at::Tensor like = at::zeros({1}, at::kDouble);
  const at::Tensor weight = random_tensor({4}, 2).requires_grad_();
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (int i = 1; i <= 3; ++i) {
    const at::Tensor x = buffer.lend({2, 4}, like).fill_(i);
    sum = sum + (x * weight).sum();  // saves x
  }
  CHECK(buffer.count() == 3);
  sum.backward();
  CHECK(weight.grad().equal(at::full({4}, 2.0 * (1 + 2 + 3), at::kDouble)));
  sum = at::Tensor();
  CHECK(buffer.in_use() == 0);
}

// Gathers with different dims, dtypes, uneven parts and an axis of one rank, each twice, so that
// the memory has old values.
NamedResults gathered_every_way(Communicator& axis) {
  GatherBuffer buffer;
  NamedResults results;
  for (int round = 0; round < 2; ++round) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kBool, at::kLong}) {
      for (const int64_t dim : {0, 1, -1}) {
        const at::Tensor local =
            (random_tensor({2, 3, 2}, 7 + axis.rank()) * 9).to(dtype).transpose(0, 2);
        const std::string name = std::string(c10::toString(dtype)) + std::to_string(dim);
        results[name + " golden"] = axis.all_gather(local, dim, "plain");
        results[name] = all_gather_in(&buffer, local, axis, dim, "lent").clone();
        results[name + " async"] =
            all_gather_async_in(&buffer, local, axis, dim, "lent later").wait().clone();
        results[name + " async golden"] = results[name + " golden"];
      }
    }
    std::vector<int64_t> sizes;  // 1, 2, .. and none on the last rank
    for (int64_t rank = 0; rank < axis.size(); ++rank) {
      sizes.push_back(rank + 1 == axis.size() ? 0 : rank + 1);
    }
    const int64_t own = sizes[static_cast<size_t>(axis.rank())];
    for (const int64_t dim : {0, 1}) {
      const at::Tensor local = random_tensor({4, 4}, 30 + axis.rank()).narrow(dim, 0, own);
      const std::string name = "uneven" + std::to_string(dim);
      results[name + " golden"] = axis.all_gather(local, dim, "plain", sizes);
      results[name] = all_gather_in(&buffer, local, axis, dim, "lent", sizes).clone();
    }
  }
  return results;
}

TEST_CASE("gathered into lent memory is gathered, on every world, size and dim",
          "[collective][SH-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    const Mesh mesh({{"dp", 2}, {"tp", tp}});
    for (const auto world : {run_emulated_ranks, run_gloo_ranks}) {
      std::vector<NamedResults> all(static_cast<size_t>(mesh.world_size()));
      world(mesh, [&](MeshComm& comm, int64_t rank) {
        all[static_cast<size_t>(rank)] = gathered_every_way(comm.along("tp"));
      });
      for (const NamedResults& results : all) {
        for (const auto& [name, tensor] : results) {
          const auto golden = results.find(name + " golden");
          if (golden == results.end()) continue;
          INFO(name << " tp=" << tp);
          CHECK(tensor.equal(golden->second));
        }
      }
    }
  }
}

TEST_CASE("two gathers in flight at once have memory of their own; one after the other share",
          "[collective][SH-2]") {
  const auto results = on_every_rank(Mesh({{"tp", 3}}), [](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    GatherBuffer buffer;
    NamedResults result;
    for (int i = 1; i <= 3; ++i) {
      all_gather_async_in(&buffer, part_of(rank) * i, tp, 0, "alone").wait();
    }
    result["alone"] = at::full({}, buffer.count());
    for (int round = 0; round < 2; ++round) {
      const at::Tensor a = part_of(rank), b = part_of(rank) * 2;
      PendingCollective first = all_gather_async_in(&buffer, a, tp, 0, "first layer");
      PendingCollective second = all_gather_async_in(&buffer, b, tp, 0, "second layer");
      const at::Tensor later = second.wait();
      result["first"] = first.wait().clone();
      result["second"] = later.clone();
    }
    result["together"] = at::full({}, buffer.count());
    result["in use"] = at::full({}, buffer.in_use());
    return result;
  });
  for (const NamedResults& result : results) {
    CHECK(result.at("first").equal(all_parts(3, 1)));
    CHECK(result.at("second").equal(all_parts(3, 2)));
    CHECK(result.at("alone").item<int64_t>() == 1);
    CHECK(result.at("together").item<int64_t>() == 2);
    CHECK(result.at("in use").item<int64_t>() == 0);
  }
}

// Makes by hand the error that the buffer prevents; the strict world reports it.
TEST_CASE("one memory for two gathers in flight, or read before the wait, is found",
          "[collective][SH-2][in_flight]") {
  const auto code_of = [](const RankFunction& body) {
    const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 2}}), body);
    return runs.failure ? runs.failure->code : std::string("none");
  };
  const auto shared = [](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor memory = at::zeros({6, 4}, at::kDouble);
    const at::Tensor a = part_of(rank), b = part_of(rank) * 2;
    PendingCollective first = tp.all_gather_into_async(memory, a, 0, "first layer");
    PendingCollective second = tp.all_gather_into_async(memory, b, 0, "second layer");
    first.wait();
    second.wait();
  };
  CHECK(code_of(shared) == "in_flight");
  const auto written = [](MeshComm& comm, int64_t rank) {
    const at::Tensor memory = at::zeros({6, 4}, at::kDouble), own = part_of(rank);
    PendingCollective pending = comm.along("tp").all_gather_into_async(memory, own, 0, "layer");
    memory.select(0, 1).fill_(3);
    pending.wait();
  };
  CHECK(code_of(written) == "in_flight");
  std::vector<double> seen(2, 0);
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    const at::Tensor memory = at::zeros({6, 4}, at::kDouble), own = part_of(rank);
    PendingCollective pending = comm.along("tp").all_gather_into_async(memory, own, 0, "layer");
    seen[static_cast<size_t>(rank)] = memory.sum().item<double>();
    pending.wait();
  });
  CHECK(std::isnan(seen[0]));
  CHECK(std::isnan(seen[1]));
}

TEST_CASE("memory that was saved for a backward and gathered into again is told by autograd",
          "[collective][SH-2]") {
  std::vector<std::string> said(2);
  run_emulated_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    const at::Tensor weight = random_tensor({4}, 2).requires_grad_();
    const at::Tensor memory = at::zeros({6, 4}, at::kDouble);
    const at::Tensor y = (tp.all_gather_into(memory, part_of(rank), 0, "a") * weight).sum();
    tp.all_gather_into(memory, part_of(rank), 0, "b");
    try {
      y.backward();
    } catch (const std::exception& error) {
      said[static_cast<size_t>(rank)] = error.what();
    }
  });
  for (const std::string& text : said) CHECK(text.find("inplace operation") != std::string::npos);
}

// Gathers of two layers whose backward needs the values, and the gather in the backward of a
// reduce-scatter.
TEST_CASE("mappings of two layers on one buffer keep their values until their backward",
          "[collective][SH-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    const at::Tensor weight_a = random_tensor({4, 5}, 2), weight_b = random_tensor({4, 5}, 3);
    const auto chain = [](const at::Tensor& a, const at::Tensor& b, const at::Tensor& wa,
                          const at::Tensor& wb) { return a.matmul(wa) * b.matmul(wb); };
    const at::Tensor x = all_parts(tp, 1).requires_grad_();
    const at::Tensor wa = weight_a.clone().requires_grad_(), wb = weight_b.clone().requires_grad_();
    const at::Tensor grad = random_tensor({3 * tp, 5}, 4);
    // The outputs of all ranks are added; rank r's is the whole times r + 1.
    (chain(x, x * 2, wa, wb) * (tp * (tp + 1) / 2)).backward(grad);
    const auto body = [&](MeshComm& comm, int64_t rank) -> NamedResults {
      Communicator& axis = comm.along("tp");
      GatherBuffer buffer;
      const at::Tensor own = part_of(axis.rank()).requires_grad_();
      const at::Tensor a_weight = weight_a.clone().requires_grad_();
      const at::Tensor b_weight = weight_b.clone().requires_grad_();
      const at::Tensor a = all_gather_with_reduce_scatter_backward(own, axis, 0, "a", {}, &buffer);
      const at::Tensor b =
          all_gather_with_reduce_scatter_backward(own * 2, axis, 0, "b", {}, &buffer);
      const at::Tensor addend = chain(a, b, a_weight, b_weight) * (axis.rank() + 1);
      const at::Tensor y =
          reduce_scatter_with_all_gather_backward(addend, axis, 0, "y", {}, &buffer);
      y.backward(grad.narrow(0, 3 * axis.rank(), 3));
      return {{"x", own.grad()},
              {"wa", axis.all_reduce(a_weight.grad(), ReduceOp::kSum, "wa")},
              {"wb", axis.all_reduce(b_weight.grad(), ReduceOp::kSum, "wb")}};
    };
    const Mesh mesh({{"dp", 2}, {"tp", tp}});
    for (const auto world : {run_emulated_ranks, run_gloo_ranks}) {
      std::vector<NamedResults> all(static_cast<size_t>(mesh.world_size()));
      world(mesh, [&](MeshComm& comm, int64_t rank) {
        all[static_cast<size_t>(rank)] = body(comm, rank);
      });
      for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        const NamedResults& result = all[static_cast<size_t>(rank)];
        CHECK(difference(x.grad().narrow(0, 3 * (rank % tp), 3), result.at("x")) == "");
        CHECK(difference(wa.grad(), result.at("wa")) == "");
        CHECK(difference(wb.grad(), result.at("wb")) == "");
      }
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
