// The version of the code that computes goldens.
#pragma once

namespace shardproof::sim::run {

// A digest of every source file that a golden's values depend on, of the compiler and of its flags;
// the build makes it (cmake/golden_code.cmake). Equal digests mean equal goldens.
const char* golden_code();

}  // namespace shardproof::sim::run
