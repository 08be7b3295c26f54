// Complete records of a run's journal are read, however the writer ended.
#include "sim/report/journal.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "tests/support/scratch_folder.h"

using namespace shardproof::sim;
using namespace shardproof::sim::report;
using shardproof::Error;

namespace {

namespace fs = std::filesystem;

class Folder : public ScratchFolder {
 public:
  std::string journal() const {
    std::ifstream stream(journal_path(path()), std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(journal_path(path()), std::ios::binary) << bytes;
  }
};

void write_three(const Folder& folder) {
  JournalWriter writer(folder.path(), JournalWriter::Earlier::kDropped);
  writer.add({{"head", 0, "{}"}});
  writer.add({{"case", 12, "twelve of  words"}, {"case", 3, ""}});
}

}  // namespace

TEST_CASE("records are read back by kind and number", "[journal]") {
  const Folder folder;
  CHECK_FALSE(JournalReader(folder.path()).is_there());
  write_three(folder);
  JournalReader reader(folder.path());
  CHECK(reader.is_there());
  CHECK(reader.text("head", 0) == "{}");
  CHECK(reader.text("case", 12) == "twelve of  words");
  CHECK(reader.numbers("case") == std::vector<size_t>{3, 12});
  CHECK(reader.text("case", 4).empty());
  CHECK(reader.numbers("none").empty());
}

// The check value of CRC-32 in the catalogue of parametrised CRC algorithms is for "123456789".
TEST_CASE("lines are checked with CRC-32", "[journal]") {
  CHECK(crc32_text("123456789") == "cbf43926");
}

TEST_CASE("a journal cut off anywhere keeps the records before the cut", "[journal]") {
  const Folder folder;
  write_three(folder);
  const std::string whole = folder.journal();
  const size_t head = whole.find('\n') + 1, twelve = whole.find('\n', head) + 1;
  for (size_t cut = 0; cut < whole.size(); ++cut) {
    folder.write(whole.substr(0, cut));
    JournalReader reader(folder.path());
    CAPTURE(cut);
    CHECK(reader.numbers("head").size() == (cut >= head ? 1 : 0));
    CHECK(reader.numbers("case").size() == (cut >= twelve ? 1 : 0));
  }
}

TEST_CASE("an altered byte loses its own record alone", "[journal]") {
  const Folder folder;
  write_three(folder);
  const std::string whole = folder.journal();
  const size_t head = whole.find('\n') + 1, twelve = whole.find('\n', head);
  for (size_t place = head; place < twelve; ++place) {
    std::string altered = whole;
    altered[place] = altered[place] == '0' ? '1' : '0';
    folder.write(altered);
    JournalReader reader(folder.path());
    CAPTURE(place);
    CHECK(reader.numbers("head").size() == 1);
    CHECK(reader.numbers("case") == std::vector<size_t>{3});
  }
}

TEST_CASE("who goes on after a cut writes a line of its own", "[journal]") {
  const Folder folder;
  write_three(folder);
  const std::string whole = folder.journal();
  folder.write(whole.substr(0, whole.size() - 5));
  JournalWriter(folder.path(), JournalWriter::Earlier::kKept).add({{"case", 7, "seven"}});
  JournalReader reader(folder.path());
  CHECK(reader.numbers("case") == std::vector<size_t>{7, 12});
  CHECK(reader.text("case", 7) == "seven");
}

TEST_CASE("the last record of a number counts", "[journal]") {
  const Folder folder;
  JournalWriter writer(folder.path(), JournalWriter::Earlier::kDropped);
  writer.add({{"case", 1, "first"}, {"case", 1, "again"}});
  CHECK(JournalReader(folder.path()).text("case", 1) == "again");
}

TEST_CASE("a folder has one writer at a time", "[journal]") {
  const Folder folder;
  using Catch::Matchers::Contains;
  {
    const JournalWriter writer(folder.path(), JournalWriter::Earlier::kDropped);
    CHECK_THROWS_WITH(JournalWriter(folder.path(), JournalWriter::Earlier::kKept),
                      Contains("another run is writing"));
  }
  CHECK_NOTHROW(JournalWriter(folder.path(), JournalWriter::Earlier::kKept));
  CHECK_THROWS_WITH(JournalWriter(folder.path() + "/none", JournalWriter::Earlier::kKept),
                    Contains("cannot write"));
}
