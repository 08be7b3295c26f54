// Asynchronous calls of the emulated world whose buffers are touched too early, or without wait().
#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "sim/world/emulated/watched_memory.h"
#include "tests/support/configured_world.h"
#include "tests/support/ones.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;
using Tensors = std::vector<at::Tensor>;

// Rank 1 makes the error; ranks 0 and 2 do not.
ConfiguredRuns run_three(const std::function<void(Communicator& tp, bool odd)>& body,
                         bool strict = true) {
  sim::WorldSpec spec;
  spec.strict = strict;
  return run_configured(spec, Mesh({{"tp", 3}}),
                        [&](ConfiguredRank& rank) { body(rank.comm.along("tp"), rank.rank == 1); });
}

ConfiguredRuns run_pair(const std::function<void(c10d::Backend& pair, int64_t rank)>& body) {
  return run_configured({}, Mesh({{"tp", 2}}), [&](ConfiguredRank& rank) {
    const auto pair = rank.backend("pair", {0, 1});
    body(*pair, rank.rank);
  });
}

void check_found(const ConfiguredRuns& runs, const std::string& code,
                 const std::vector<std::string>& words) {
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == code);
  CHECK(runs.failure->ranks == std::vector<int64_t>{1});
  for (const std::string& word : words) CHECK_THAT(runs.failure->message, Contains(word));
}

TEST_CASE("an input that is written before the wait is found, with rank and label", "[in_flight]") {
  const auto written = [](PendingCollective pending, at::Tensor& input, bool odd) {
    if (odd) input.fill_(7);
    pending.wait();
  };
  SECTION("the backend reads it where it is") {
    const auto runs = run_three([&](Communicator& tp, bool odd) {
      at::Tensor input = ones(4);
      written(tp.all_gather_async(input, 0, "layers.2 weights"), input, odd);
    });
    check_found(runs, "in_flight",
                {"rank 1 wrote to the input of all_gather tp[0,1,2] [4] float64 "
                 "'layers.2 weights' (call 0) before it waited"});
    CHECK_THAT(runs.errors[1], Contains("wait() for the call before its buffers are used"));
    CHECK(runs.errors[0] != runs.errors[1]);
  }
  SECTION("the communicator copies it, as it happens") {
    check_found(run_three([&](Communicator& tp, bool odd) {
                  at::Tensor input = ones(4);
                  written(tp.all_reduce_async(input, ReduceOp::kSum, "bucket 5"), input, odd);
                }),
                "in_flight", {"all_reduce(sum)", "bucket 5"});
  }
  SECTION("it is not contiguous") {
    check_found(run_three([&](Communicator& tp, bool odd) {
                  at::Tensor input = ones(12).view({3, 4}).slice(1, 0, 2);
                  written(tp.reduce_scatter_async(input, 0, ReduceOp::kSum, "rows"), input, odd);
                }),
                "in_flight", {"reduce_scatter(sum)", "'rows'"});
  }
  SECTION("past every version counter") {
    check_found(run_three([&](Communicator& tp, bool odd) {
                  at::Tensor buffer = ones(64);
                  const at::Tensor input = buffer.slice(0, 8, 38);
                  PendingCollective pending = tp.all_to_all_async(input, "tokens");
                  if (odd) buffer.mutable_data_ptr<double>()[37] = 1.0000001;
                  pending.wait();
                }),
                "in_flight", {"wrote to the input of all_to_all", "'tokens'"});
  }
  SECTION("with the same bytes, as far as its counter tells") {
    check_found(run_three([&](Communicator& tp, bool odd) {
                  at::Tensor input = ones(4);
                  PendingCollective pending = tp.all_gather_async(input, 0, "weights");
                  if (odd) input.mul_(2).mul_(0.5);
                  pending.wait();
                }),
                "in_flight", {"wrote to the input of all_gather"});
  }
}

TEST_CASE("an input whose memory is given away before the wait is found", "[in_flight]") {
  check_found(run_three([](Communicator& tp, bool odd) {
                at::Tensor input = ones(4);
                PendingCollective pending = tp.all_gather_async(input, 0, "shard");
                if (odd) at::native::resize_bytes_nocuda(input.storage(), 0);
                pending.wait();
              }),
              "in_flight", {"rank 1 freed the input of all_gather", "'shard'"});
}

// At the wait the rank no longer holds the buffer, and its peers may have read it.
TEST_CASE("an input that is written and let go before the wait is found", "[in_flight]") {
  SECTION("a piece of a buffer, past every version counter") {
    check_found(run_three([](Communicator& tp, bool odd) {
                  at::Tensor buffer = ones(64);
                  PendingCollective pending =
                      tp.all_to_all_async(buffer.slice(0, 8, 38), "layers.1 tokens");
                  if (odd) buffer.mutable_data_ptr<double>()[37] = 1.0000001;
                  buffer = at::Tensor();
                  pending.wait();
                }),
                "in_flight",
                {"rank 1 wrote to the input of all_to_all tp[0,1,2] [30] float64 "
                 "'layers.1 tokens' (call 0) before it waited"});
  }
  SECTION("a whole buffer of any size, as far as its counter tells") {
    const int64_t count = GENERATE(4, 40000);
    check_found(run_three([count](Communicator& tp, bool odd) {
                  at::Tensor input = ones(count);
                  PendingCollective pending =
                      tp.all_reduce_async(input, ReduceOp::kSum, "bucket 5");
                  if (odd) input.fill_(7);
                  input = at::Tensor();
                  pending.wait();
                }),
                "in_flight", {"rank 1 wrote to the input of all_reduce(sum)", "'bucket 5'"});
  }
  SECTION("its memory is given away under the tensor") {
    check_found(run_three([](Communicator& tp, bool odd) {
                  at::Tensor input = ones(6);
                  PendingCollective pending = tp.reduce_scatter_async(
                      input.view({3, 2}), 0, ReduceOp::kSum, "layers.2 reduce");
                  if (odd) input.mul_(2);
                  if (odd) at::native::resize_bytes_nocuda(input.storage(), 0);
                  pending.wait();
                }),
                "in_flight", {"rank 1 wrote to the input of reduce_scatter(sum)"});
  }
}

TEST_CASE("freed memory that somebody else got is no buffer of a call in flight", "[in_flight]") {
  const at::Tensor freed = ones(4);
  const at::Tensor next = at::from_blob(freed.data_ptr(), {4}, at::kDouble);
  const sim::WatchedMemory watched(freed);
  CHECK(watched.overlaps(next));
  at::native::resize_bytes_nocuda(freed.storage(), 0);
  CHECK(!watched.overlaps(next));
}

TEST_CASE("what harms nobody is no finding", "[in_flight]") {
  const auto runs = run_three([](Communicator& tp, bool) {
    at::Tensor buffer = ones(12);
    PendingCollective first = tp.all_gather_async(buffer.slice(0, 0, 4), 0, "first bucket");
    buffer.slice(0, 4, 8).fill_(3);  // the next bucket of one storage
    PendingCollective second = tp.all_gather_async(buffer.slice(0, 4, 8), 0, "second bucket");
    PendingCollective copied = tp.all_reduce_async(ones(3), ReduceOp::kSum, "nobody holds it");
    at::Tensor freed = ones(6);
    PendingCollective sum = tp.all_reduce_async(freed, ReduceOp::kSum, "copied, then freed");
    at::native::resize_bytes_nocuda(freed.storage(), 0);
    at::Tensor large = ones(40000);
    PendingCollective whole = tp.all_gather_async(large, 0, "let go, too large to be kept");
    large = at::Tensor();
    second.wait();
    whole.wait();
    sum.wait();
    first.wait();
    copied.wait();
    buffer.fill_(0);
  });
  CHECK(!runs.failure);
  for (const std::string& error : runs.errors) CHECK(error == "");
}

TEST_CASE("a wait that is missing is found when the rank ends", "[in_flight]") {
  SECTION("the pending call was dropped") {
    check_found(run_three([](Communicator& tp, bool odd) {
                  PendingCollective pending =
                      tp.all_reduce_async(ones(2), ReduceOp::kSum, "grad bucket 0");
                  if (!odd) pending.wait();
                }),
                "never_waited",
                {"rank 1 started all_reduce(sum) tp[0,1,2] [2] float64 'grad bucket 0' (call 0) "
                 "and never waited for it"});
  }
  SECTION("it is held for ever, and others were waited for") {
    std::vector<PendingCollective> held;
    check_found(run_three([&](Communicator& tp, bool odd) {
                  PendingCollective first = tp.all_gather_async(ones(2), 0, "layers.0");
                  PendingCollective second = tp.all_gather_async(ones(2), 0, "layers.1");
                  second.wait();
                  if (odd)
                    held.push_back(std::move(first));
                  else
                    first.wait();
                }),
                "never_waited", {"rank 1 started all_gather", "'layers.0' (call 0)"});
    held.clear();
  }
}

TEST_CASE("two calls of one shape in another order on one rank are named by their labels",
          "[in_flight]") {
  const auto runs = run_three([](Communicator& tp, bool odd) {
    const char* labels[2] = {"grad of layers.1", "grad of layers.0"};
    PendingCollective first = tp.all_reduce_async(ones(2), ReduceOp::kSum, labels[odd ? 1 : 0]);
    PendingCollective second = tp.all_reduce_async(ones(2), ReduceOp::kSum, labels[odd ? 0 : 1]);
    first.wait();
    second.wait();
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "disagreement");
  CHECK_THAT(runs.failure->message,
             Contains("'grad of layers.1'") && Contains("'grad of layers.0'"));
}

TEST_CASE("a result that is read before the wait is poison", "[in_flight]") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kBFloat16, at::kLong, at::kInt, at::kByte);
  std::vector<double> early(2), late(2);
  const auto runs = run_pair([&](c10d::Backend& pair, int64_t rank) {
    Tensors tensors{at::full({3}, rank + 1, dtype)};
    auto work = pair.allreduce(tensors);
    early[static_cast<size_t>(rank)] = tensors[0][0].to(at::kDouble).item<double>();
    work->wait();
    late[static_cast<size_t>(rank)] = tensors[0][2].to(at::kDouble).item<double>();
  });
  CHECK(!runs.failure);
  CHECK(late == std::vector<double>{3, 3});
  if (at::isFloatingType(dtype)) CHECK(std::isnan(early[0]));
  if (dtype == at::kLong) CHECK(early[1] == -9223372036854775808.0);
  if (dtype == at::kInt) CHECK(early[1] == -2147483648.0);
  if (dtype == at::kByte) CHECK(early[1] == 2);  // every byte is a value
}

TEST_CASE("a result that is written before the wait is found", "[in_flight]") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kByte);
  check_found(run_pair([&](c10d::Backend& pair, int64_t rank) {
                at::Tensor output = at::zeros({8}, dtype), input = at::ones({4}, dtype);
                auto work = pair._allgather_base(output, input);
                if (rank == 1) output.slice(0, 7, 8).add_(1);
                work->wait();
              }),
              "in_flight", {"rank 1 wrote to the output of all_gather pair"});
}

// Writes as a network card or another library does, without a version counter.
TEST_CASE("one byte written into a result before the wait is found, wherever it is",
          "[in_flight]") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kBFloat16, at::kInt, at::kByte);
  for (const int64_t place : {0, 1, 17, 36}) {
    INFO(dtype << " " << place);
    check_found(run_pair([&](c10d::Backend& pair, int64_t rank) {
                  at::Tensor tensor = at::full({37}, 3, dtype);
                  Tensors tensors{tensor};
                  auto work = pair.allreduce(tensors);
                  auto* bytes = static_cast<char*>(tensor.data_ptr());
                  if (rank == 1) bytes[place * static_cast<int64_t>(tensor.element_size())] ^= 1;
                  work->wait();
                }),
                "in_flight", {"rank 1 wrote to the output of all_reduce"});
  }
}

TEST_CASE("a call on a buffer of a call in flight is found when it is made", "[in_flight]") {
  SECTION("its output is the other's input") {
    check_found(run_pair([&](c10d::Backend& pair, int64_t rank) {
                  at::Tensor shard = ones(4), full = ones(8);
                  auto gather = pair._allgather_base(full, shard);
                  Tensors sums{rank == 1 ? shard.slice(0, 2, 4) : ones(2)};
                  auto sum = pair.allreduce(sums);
                  gather->wait();
                  sum->wait();
                }),
                "in_flight",
                {"rank 1 calls all_reduce(sum) pair", "on a buffer of all_gather",
                 "its output is the input of the call in flight"});
  }
  SECTION("its input is the other's output") {
    check_found(run_pair([&](c10d::Backend& pair, int64_t rank) {
                  Tensors sums{ones(4)};
                  auto sum = pair.allreduce(sums);
                  at::Tensor full = ones(8), shard = rank == 1 ? sums[0] : ones(4);
                  auto gather = pair._allgather_base(full, shard);
                  sum->wait();
                  gather->wait();
                }),
                "in_flight", {"its input is the output of the call in flight"});
  }
  SECTION("both write to one") {
    check_found(run_pair([&](c10d::Backend& pair, int64_t rank) {
                  Tensors first{ones(4)}, second{rank == 1 ? first[0] : ones(4)};
                  auto one = pair.allreduce(first);
                  auto two = pair.allreduce(second);
                  one->wait();
                  two->wait();
                }),
                "in_flight", {"an output of the one is an output of the other"});
  }
}

TEST_CASE("a gather whose input is a part of its output is allowed", "[in_flight]") {
  std::vector<double> sums(2);
  const auto runs = run_pair([&](c10d::Backend& pair, int64_t rank) {
    at::Tensor full = at::zeros({4}, at::kDouble);
    at::Tensor own = full.slice(0, 2 * rank, 2 * rank + 2);
    own.fill_(static_cast<double>(rank + 1));
    pair._allgather_base(full, own)->wait();
    sums[static_cast<size_t>(rank)] = full.sum().item<double>();
  });
  CHECK(!runs.failure);
  CHECK(sums == std::vector<double>{6, 6});
}

TEST_CASE("a world that is not strict forgives what networks forgive", "[in_flight]") {
  std::vector<double> gathered(3);
  const auto runs = run_three(
      [&](Communicator& tp, bool) {
        at::Tensor input = ones(2) * static_cast<double>(tp.rank() + 1);
        PendingCollective gather = tp.all_gather_async(input, 0, "gather");
        input.fill_(100);  // after the call has read it
        gathered[static_cast<size_t>(tp.rank())] = gather.wait().sum().item<double>();
      },
      false);
  CHECK(!runs.failure);
  CHECK(gathered == std::vector<double>{12, 12, 12});
}

}  // namespace
}  // namespace shardproof::tests
