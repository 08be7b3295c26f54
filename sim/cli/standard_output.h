// Standard input, output and error as a program finds them, whether its output arrived, and what
// ends it.
#pragma once

namespace shardproof::sim::cli {

// Call this before anything opens a file. A standard file that is closed becomes one that cannot
// be written or read, so that no other file gets its number. A file that grows over `ulimit -f` is
// an error of its writer from here on, and no longer the end of the process.
void prepare_standard_files();

// SIGINT and SIGTERM end the program as they do any other, and a sentence says so. A pool of
// workers takes them in its own way while it exists. A signal that is ignored stays so.
void prepare_interrupts();

// Writes out what was printed. Returns `status`; 2, after one sentence on standard error, when
// standard output did not take all of it.
int status_of_output(int status);

}  // namespace shardproof::sim::cli
