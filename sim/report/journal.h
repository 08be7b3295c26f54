// What a run has found so far, on disk while the run goes on: RUN/journal. Each record is one line,
// "<crc32> <kind> <number> <text>", so that whatever ends the run leaves whole lines behind it:
//
//   head 0       the command, its arguments, the selected cases (run_folder.h)
//   events 7     the case's part of timeline.json
//   junit 7      the case's part of junit.xml
//   case 7       the case's entry of results.json; where it is there, the other two are there
#pragma once

#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shardproof::sim::report {

struct JournalRecord {
  std::string kind;  // one word
  size_t number = 0;
  std::string text;  // one line
};

std::string journal_path(const std::string& folder);
// Eight hexadecimal digits.
std::string crc32_text(std::string_view bytes);

// Writes the journal of a folder, which it locks against other processes. A journal that is kept
// changes with the first record that is added. Throws Error(kBadInput): another process writes
// there; the file cannot be written.
class JournalWriter {
 public:
  enum class Earlier { kDropped, kKept };  // the records that are there already
  JournalWriter(const std::string& folder, Earlier earlier);
  ~JournalWriter();
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // One write for all of them; at least once a second what was written is forced to the disk.
  void add(const std::vector<JournalRecord>& records);

 private:
  // A line feed after a line that a killed run has cut off; else "".
  std::string end_of_cut_line() const;
  void write(const std::string& bytes);

  std::string path_;
  int fd_ = -1;
  std::chrono::steady_clock::time_point flushed_ = {};
};

// Whether the file is one of ours: it begins with a head, or holds nothing yet.
bool is_journal(const std::string& folder);
// Whether a process is writing into the folder.
bool is_being_written(const std::string& folder);

// The records of a journal. A line that is cut off or altered is left out.
class JournalReader {
 public:
  // Reads the file once; texts stay in it.
  explicit JournalReader(const std::string& folder);
  bool is_there() const { return is_there_; }
  // The text of the record of this number, "" when there is none.
  std::string text(const std::string& kind, size_t number);
  // The same text as an object; an Error(kBadInput) names its line.
  nlohmann::json json(const std::string& kind, size_t number);
  // The numbers of all records of this kind, in order.
  std::vector<size_t> numbers(const std::string& kind) const;
  // The numbers of the cases whose three records are whole, in order.
  std::vector<size_t> finished() const;

 private:
  struct Place {
    std::streamoff start = 0;
    size_t size = 0;
    int64_t line = 0;  // from 1
  };
  // nullptr: no such record.
  const Place* find(const std::string& kind, size_t number) const;

  std::string path_;
  std::ifstream stream_;
  bool is_there_ = false;
  std::map<std::string, std::map<size_t, Place>> places_;  // of the last record of each number
};

}  // namespace shardproof::sim::report
