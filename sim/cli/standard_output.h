// Standard input, output and error as a program finds them, and whether its output arrived.
#pragma once

namespace shardproof::sim::cli {

// Call this before anything opens a file. A standard file that is closed becomes one that cannot
// be written or read, so that no other file gets its number. A file that grows over `ulimit -f` is
// an error of its writer from here on, and no longer the end of the process.
void prepare_standard_files();

// Writes out what was printed. Returns `status`; 2, after one sentence on standard error, when
// standard output did not take all of it.
int status_of_output(int status);

}  // namespace shardproof::sim::cli
