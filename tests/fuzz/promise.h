// Checks the two endings that a reader may have.
#pragma once

#include <sstream>
#include <string>

#include "base/error.h"
#include "base/utf8.h"
#include "tests/fuzz/readers.h"

namespace shardproof::fuzz {

inline void promise(bool kept, const std::string& what) {
  if (!kept) throw BrokenPromise(what);
}

// `read` must return a value, or throw an Error with a sentence fit for a terminal and for JSON.
template <class Read>
Ending value_or_sentence(const Read& read) {
  try {
    read();
    return Ending::kRead;
  } catch (const Error& error) {
    promise(error.kind() != ErrorKind::kFailed, "a reader cannot fail as a world does");
    promise(!error.fact().empty() && !error.fix().empty(), "an Error without a fact or a fix");
    std::istringstream sentences(error.what());  // one for each error of a file
    for (std::string sentence; std::getline(sentences, sentence);) {
      promise(!sentence.empty() && is_printable(sentence),
              "a sentence with control characters: " + printable(sentence));
      promise(sentence.size() <= 2000,
              "a sentence of " + std::to_string(sentence.size()) + " bytes");
    }
    return Ending::kRefused;
  }
}

}  // namespace shardproof::fuzz
