// One reader for libFuzzer. A broken promise is not caught: the process aborts and libFuzzer keeps
// the input.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/readers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  shardproof::fuzz::SHARDPROOF_FUZZ_READER({reinterpret_cast<const char*>(data), size});
  return 0;
}
