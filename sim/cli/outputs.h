// What a command reads, and where it writes what its options name. All of this is said before
// anything runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::sim::cli {

// The files that a command reads for this case: weights, config, batch, scenario or case.json.
std::vector<std::filesystem::path> inputs_of(const CaseSpec& spec);

// Throws Error(kBadInput) where both are one file or folder, which a comparison calls equal.
void require_two(const std::string& a, const std::string& b);

// Files of one kind, which a command that wrote one may replace.
struct OwnFile {
  const char* what;
  bool (*is)(const std::filesystem::path&);
};

// Tensors that --dump of `run`, `check` or `golden` wrote.
extern const OwnFile kOwnDump;

// `path` made absolute; "" stays "". Throws Error(kBadInput): a folder, a device or another file
// that is not regular; one of `inputs`; unless `force`, a file that is not an `own` one; a folder
// above it that is missing or cannot be written.
std::string output_file(const std::string& option, const std::string& path,
                        const std::vector<std::filesystem::path>& inputs, bool force,
                        const OwnFile& own = kOwnDump);

// `path` made absolute, and made a folder; "" stays "". Throws Error(kBadInput): it cannot be made
// or written; it holds one of `inputs`; it holds other files than those of a saved model, unless
// `force`.
std::string output_folder(const std::string& option, const std::string& path,
                          const std::vector<std::filesystem::path>& inputs, bool force);

// Throws Error(kBadInput) if `path` of one option lies in the folder that another option of the
// same command writes, or is that folder; "" is nowhere.
void require_apart(const std::string& option, const std::string& path, const std::string& other,
                   const std::string& folder);

// The folder of --out for the results of a run; "" stays for runs/<time>. Throws Error(kBadInput):
// it cannot be made; it holds one of `inputs`; it holds other files than those of a run, unless
// `force`.
std::string results_folder(const std::string& path,
                           const std::vector<std::filesystem::path>& inputs, bool force);

// Standard input, output and error as a program finds them, whether its output arrived, and what
// ends it.

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
