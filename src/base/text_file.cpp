#include "base/text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace shardproof {

void write_text_file(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();  // writes the last bytes, which may find the disk full
  if (out) return;
  throw_bad_input(fmt::format("'{}' cannot be written: {}", path, std::strerror(errno)),
                  "name a folder that can be written to and has space");
}

}  // namespace shardproof
