// Asynchronous calls of the emulated world whose buffers are touched too early, or without wait().
#include <ATen/ATen.h>
#include <ATen/native/Resize.h>

#include <atomic>
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

PendingCollective gather(Communicator& tp, const at::Tensor& input) {
  return tp.all_gather_async(input, 0, "weights");
}
PendingCollective reduce(Communicator& tp, const at::Tensor& input) {
  return tp.all_reduce_async(input, ReduceOp::kSum, "bucket 5");
}
PendingCollective scatter(Communicator& tp, const at::Tensor& input) {
  return tp.reduce_scatter_async(input, 0, ReduceOp::kSum, "rows");
}
PendingCollective exchange(Communicator& tp, const at::Tensor& input) {
  return tp.all_to_all_async(input, "tokens");
}

at::Tensor whole(const at::Tensor& buffer) { return buffer; }
at::Tensor piece(const at::Tensor& buffer) { return buffer.slice(0, 8, 38); }
at::Tensor rows(const at::Tensor& buffer) { return buffer.view({3, 2}); }
at::Tensor columns(const at::Tensor& buffer) { return buffer.view({3, 4}).slice(1, 0, 2); }

void fill(const at::Tensor& buffer) { buffer.fill_(7); }
void poke(const at::Tensor& buffer) { buffer.mutable_data_ptr<double>()[37] = 1.0000001; }
void write_the_same(const at::Tensor& buffer) { buffer.mul_(2).mul_(0.5); }
void give_away(const at::Tensor& buffer) { at::native::resize_bytes_nocuda(buffer.storage(), 0); }
void fill_and_give_away(const at::Tensor& buffer) {
  fill(buffer);
  give_away(buffer);
}

struct Misuse {
  const char* what;
  int64_t count;  // elements of the buffer
  at::Tensor (*input)(const at::Tensor& buffer);
  PendingCollective (*start)(Communicator& tp, const at::Tensor& input);
  void (*deed)(const at::Tensor& buffer);  // of rank 1, before it waits
  bool let_go;                             // whether every rank drops the buffer before it waits
  const char* words;
};

TEST_CASE("an input that is written or freed before the wait is found, with rank and label",
          "[in_flight]") {
  const Misuse misuses[] = {
      {"where the backend reads it", 4, whole, gather, fill, false,
       "wrote to the input of all_gather tp[0,1,2] [4] float64 'weights' (call 0) before it "
       "waited"},
      {"where the communicator copies it", 4, whole, reduce, fill, false,
       "wrote to the input of all_reduce(sum) tp[0,1,2] [4] float64 'bucket 5'"},
      {"not contiguous", 12, columns, scatter, fill, false,
       "wrote to the input of reduce_scatter(sum) tp[0,1,2]"},
      {"past every version counter", 64, piece, exchange, poke, false,
       "wrote to the input of all_to_all tp[0,1,2] [30] float64 'tokens'"},
      {"with the same bytes, as far as its counter tells", 4, whole, gather, write_the_same, false,
       "wrote to the input of all_gather"},
      {"its memory is given away", 4, whole, gather, give_away, false,
       "freed the input of all_gather"},
      {"the same after a write", 6, rows, scatter, fill_and_give_away, false,
       "wrote to the input of reduce_scatter(sum)"},
      // At the wait the rank no longer holds the buffer, and its peers may have read it.
      {"a piece, let go", 64, piece, exchange, poke, true, "wrote to the input of all_to_all"},
      {"a buffer, let go", 4, whole, reduce, fill, true, "wrote to the input of all_reduce(sum)"},
      {"a large buffer, let go, as far as its counter tells", 40000, whole, reduce, fill, true,
       "wrote to the input of all_reduce(sum)"},
  };
  for (const Misuse& misuse : misuses) {
    INFO(misuse.what);
    const auto runs = run_three([&](Communicator& tp, bool odd) {
      at::Tensor buffer = ones(misuse.count);
      at::Tensor input = misuse.input(buffer);
      PendingCollective pending = misuse.start(tp, input);
      if (odd) misuse.deed(buffer);
      if (misuse.let_go) buffer = input = at::Tensor();
      pending.wait();
    });
    check_found(runs, "in_flight", {std::string("rank 1 ") + misuse.words});
    CHECK_THAT(runs.errors[1], Contains("wait() for the call before its buffers are used"));
    CHECK(runs.errors[0] != runs.errors[1]);
  }
}

TEST_CASE("freed memory that somebody else got is no buffer of a call in flight", "[in_flight]") {
  const at::Tensor freed = ones(4);
  const at::Tensor next = at::from_blob(freed.data_ptr(), {4}, at::kDouble);
  const sim::world::WatchedMemory watched(freed);
  CHECK(watched.overlaps(next));
  at::native::resize_bytes_nocuda(freed.storage(), 0);
  CHECK(!watched.overlaps(next));
}

TEST_CASE("what harms nobody is no finding, nor are waits in another order", "[in_flight]") {
  std::vector<std::vector<double>> sums(3);
  const auto runs = run_three([&](Communicator& tp, bool) {
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
    for (PendingCollective* pending : {&second, &whole, &sum, &first, &copied}) {
      sums[static_cast<size_t>(tp.rank())].push_back(pending->wait().sum().item<double>());
    }
    buffer.fill_(0);
  });
  CHECK(!runs.failure);
  CHECK(sums == std::vector<std::vector<double>>(3, {36, 120000, 18, 12, 9}));
  for (const std::string& error : runs.errors) CHECK(error == "");
}

TEST_CASE("a call that is held and not waited for is found when the rank ends", "[in_flight]") {
  std::vector<PendingCollective> held;
  check_found(run_three([&](Communicator& tp, bool odd) {
                PendingCollective first = tp.all_gather_async(ones(2), 0, "layers.0");
                tp.all_gather_async(ones(2), 0, "layers.1").wait();
                if (odd)
                  held.push_back(std::move(first));
                else
                  first.wait();
              }),
              "never_waited",
              {"rank 1 started all_gather tp[0,1,2] [2] float64 'layers.0' (call 0) and never "
               "waited for it"});
}

TEST_CASE("a result is poison until the wait, which bumps its version", "[in_flight]") {
  const at::ScalarType dtype = GENERATE(at::kDouble, at::kBFloat16, at::kLong, at::kInt, at::kByte);
  std::vector<double> early(2), late(2);
  std::atomic<int> bumped = 0;
  const auto runs = run_pair([&](c10d::Backend& pair, int64_t rank) {
    Tensors tensors{at::full({3}, rank + 1, dtype)};
    const auto version = tensors[0]._version();
    auto work = pair.allreduce(tensors);
    pair.barrier()->wait();  // both ranks have called, so the sum exists
    early[static_cast<size_t>(rank)] = tensors[0][0].to(at::kDouble).item<double>();
    work->wait();
    late[static_cast<size_t>(rank)] = tensors[0][2].to(at::kDouble).item<double>();
    if (tensors[0]._version() > version) ++bumped;
  });
  CHECK(!runs.failure);
  CHECK(bumped == 2);
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
  struct Clash {
    std::string how;
    void (*calls)(c10d::Backend& pair, bool odd);
  };
  const Clash clashes[] = {
      {"its output is the input of the call in flight",
       [](c10d::Backend& pair, bool odd) {
         at::Tensor shard = ones(4), full = ones(8);
         auto gather = pair._allgather_base(full, shard);
         Tensors sums{odd ? shard.slice(0, 2, 4) : ones(2)};
         pair.allreduce(sums)->wait();
         gather->wait();
       }},
      {"its input is the output of the call in flight",
       [](c10d::Backend& pair, bool odd) {
         Tensors sums{ones(4)};
         auto sum = pair.allreduce(sums);
         at::Tensor full = ones(8), shard = odd ? sums[0] : ones(4);
         pair._allgather_base(full, shard)->wait();
         sum->wait();
       }},
      {"an output of the one is an output of the other",
       [](c10d::Backend& pair, bool odd) {
         Tensors first{ones(4)}, second{odd ? first[0] : ones(4)};
         auto sum = pair.allreduce(first);
         pair.allreduce(second)->wait();
         sum->wait();
       }},
  };
  for (const Clash& clash : clashes) {
    check_found(run_pair([&](c10d::Backend& pair, int64_t rank) { clash.calls(pair, rank == 1); }),
                "in_flight", {"rank 1 calls ", "on a buffer of all_", clash.how});
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
