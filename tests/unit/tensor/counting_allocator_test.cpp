#include "tensor/counting_allocator.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <thread>

#include "tensor/tensor_memory.h"

using namespace shardproof;

namespace {

at::Tensor bytes_of(int64_t count) { return at::empty({count}, at::kByte); }

}  // namespace

TEST_CASE("each block is aligned and keeps its values, whatever its size", "[tensor]") {
  use_counting_allocator();
  std::vector<at::Tensor> blocks;
  for (const int64_t size : {1, 8, 63, 64, 65, 1000, 1024, 4095, 4096, 4097, 100000, 3000000}) {
    blocks.push_back(bytes_of(size).fill_(size % 251));
    CHECK(reinterpret_cast<uintptr_t>(blocks.back().data_ptr()) % 64 == 0);
  }
  for (const at::Tensor& block : blocks) {
    CHECK(block.eq(block.numel() % 251).all().item<bool>());
  }
  CHECK(bytes_of(0).numel() == 0);
}

TEST_CASE("a meter counts what is allocated and freed while it listens", "[tensor]") {
  use_counting_allocator();
  at::Tensor before = bytes_of(5000);
  TensorMemory memory;
  {
    const at::Tensor small = bytes_of(100), large = bytes_of(5000);
    CHECK(memory.current_bytes() == 5100);
  }
  CHECK(memory.current_bytes() == 0);
  CHECK(memory.peak_bytes() == 5100);
  before.reset();  // from before the meter: it never counted
  CHECK(memory.current_bytes() == 0);
  at::Tensor elsewhere;
  std::thread([&elsewhere] { elsewhere = bytes_of(700); }).join();
  CHECK(memory.current_bytes() == 0);  // nobody listened there
  elsewhere.reset();
  CHECK(memory.current_bytes() == 0);
}

TEST_CASE("more memory than there is gives LibTorch's error", "[tensor]") {
  if (!use_counting_allocator()) return;  // AddressSanitizer ends a program that asks for so much
  CHECK_THROWS_WITH(bytes_of(int64_t{1} << 60), Catch::Contains("can't allocate memory"));
}
