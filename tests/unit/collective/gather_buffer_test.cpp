// Memory for gathered tensors is reused, but never while a tensor needs it.
#include "collective/gather_buffer.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <numeric>

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

// Gathers with different dims, dtypes and uneven parts, each twice, so that the memory has old
// values. Throws where one is not the plain gather.
void check_gathers(Communicator& axis) {
  GatherBuffer buffer;
  const auto check = [&](const at::Tensor& local, int64_t dim, const std::vector<int64_t>& sizes) {
    const at::Tensor golden = axis.all_gather(local, dim, "plain", sizes);
    const bool same =
        all_gather_in(&buffer, local, axis, dim, "lent", sizes).equal(golden) &&
        all_gather_async_in(&buffer, local, axis, dim, "lent later", sizes).wait().equal(golden);
    if (!same) throw std::logic_error("dim " + std::to_string(dim) + " is gathered otherwise");
  };
  std::vector<int64_t> sizes(static_cast<size_t>(axis.size()));  // 1, 2, .. and 0 on the last rank
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.back() = 0;
  const int64_t own = sizes[static_cast<size_t>(axis.rank())];
  for (int round = 0; round < 2; ++round) {
    for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kBool, at::kLong}) {
      const at::Tensor local = (random_tensor({2, 3, 2}, 7 + axis.rank()) * 9).to(dtype);
      for (const int64_t dim : {0, 1, -1}) check(local.transpose(0, 2), dim, {});
    }
    const at::Tensor square = random_tensor({4, 4}, 30 + axis.rank());
    for (const int64_t dim : {0, 1}) check(square.narrow(dim, 0, own), dim, sizes);
  }
}

TEST_CASE("gathered into lent memory is gathered, on every world, size and dim",
          "[collective][SH-2]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const auto world : {run_emulated_ranks, run_gloo_ranks}) {
      CHECK_NOTHROW(world(Mesh({{"dp", 2}, {"tp", tp}}),
                          [](MeshComm& comm, int64_t) { check_gathers(comm.along("tp")); }));
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

}  // namespace
}  // namespace shardproof::tests
