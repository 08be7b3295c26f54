// Checked lines of a file that several processes may want to write.
#include "sim/report/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/crc.hpp>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

#include "base/error.h"
#include "base/read_text.h"
#include "base/shortage.h"

namespace shardproof::sim::report {
namespace {

constexpr std::chrono::seconds kFlushEvery{1};
constexpr size_t kCrcDigits = 8;

[[noreturn]] void cannot_write_journal(const std::string& path, int error) {
  throw_if_too_many_files("cannot write " + path, error);
  throw_bad_input(fmt::format("cannot write {}: {}", path, std::strerror(error)),
                  "make room there and go on with `shardproof run --resume`, or name another "
                  "folder with --out");
}

// In place, as the text of a large case has tens of MB.
void append_line(const JournalRecord& record, std::string& bytes) {
  const std::string head = fmt::format("{} {} ", record.kind, record.number);
  const size_t begin = bytes.size(), summed = begin + kCrcDigits + 1;
  bytes.reserve(summed + head.size() + record.text.size() + 1);
  bytes.append(kCrcDigits, '0').append(" ").append(head).append(record.text);
  bytes.replace(begin, kCrcDigits, crc32_text(std::string_view(bytes).substr(summed)));
  bytes += '\n';
}

// Where the text begins in a line, and what it is of; nothing when the line is not whole.
struct Head {
  std::string kind;
  size_t number = 0;
  size_t text = 0;
};
std::optional<Head> head_of(const std::string& line) {
  if (line.size() <= kCrcDigits || line[kCrcDigits] != ' ') return std::nullopt;
  const size_t kind = kCrcDigits + 1;
  if (crc32_text(std::string_view(line).substr(kind)) != line.substr(0, kCrcDigits)) {
    return std::nullopt;
  }
  const size_t number = line.find(' ', kind) + 1, text = line.find(' ', number) + 1;
  if (number == 0 || text == 0) return std::nullopt;
  Head head{.kind = line.substr(kind, number - 1 - kind), .text = text};
  const char* end = line.data() + text - 1;
  const auto [last, error] = std::from_chars(line.data() + number, end, head.number);
  if (error != std::errc() || last != end) return std::nullopt;
  return head;
}

// Where the path is a link, or another name of a file, that file is somebody's.
void remove_other_name(const std::string& path) {
  struct stat found {};
  const bool is_there = ::lstat(path.c_str(), &found) == 0;
  if (is_there && (S_ISLNK(found.st_mode) || found.st_nlink > 1)) ::unlink(path.c_str());
}

}  // namespace

std::string journal_path(const std::string& folder) { return folder + "/journal"; }

std::string crc32_text(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return fmt::format("{:08x}", crc.checksum());
}

JournalWriter::JournalWriter(const std::string& folder, Earlier earlier)
    : path_(journal_path(folder)) {
  require_plain_file(path_);
  if (earlier == Earlier::kDropped) remove_other_name(path_);
  const int create = earlier == Earlier::kDropped ? O_CREAT : 0;
  fd_ = ::open(path_.c_str(), O_RDWR | create | O_APPEND | O_CLOEXEC, 0644);
  if (fd_ < 0) cannot_write_journal(path_, errno);
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd_, F_OFD_SETLK, &whole) != 0) {
    const bool locked = errno == EAGAIN || errno == EACCES;
    const int error = errno;
    ::close(fd_);
    if (!locked) cannot_write_journal(path_, error);
    throw_bad_input(fmt::format("another run is writing into {}", folder),
                    "wait until it has ended, or name another folder with --out");
  }
  if (earlier == Earlier::kDropped && ::ftruncate(fd_, 0) != 0) {
    const int error = errno;
    ::close(fd_);
    cannot_write_journal(path_, error);
  }
}

JournalWriter::~JournalWriter() { ::close(fd_); }

void JournalWriter::add(const std::vector<JournalRecord>& records) {
  std::string bytes = end_of_cut_line();
  for (const JournalRecord& record : records) append_line(record, bytes);
  write(bytes);
  const auto now = std::chrono::steady_clock::now();
  if (now - flushed_ < kFlushEvery) return;
  if (::fdatasync(fd_) != 0 && errno != EINVAL) cannot_write_journal(path_, errno);
  flushed_ = now;
}

std::string JournalWriter::end_of_cut_line() const {
  const off_t size = ::lseek(fd_, 0, SEEK_END);
  char last = '\n';
  return size > 0 && ::pread(fd_, &last, 1, size - 1) == 1 && last != '\n' ? "\n" : "";
}

void JournalWriter::write(const std::string& bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t count = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) cannot_write_journal(path_, errno);
    done += static_cast<size_t>(count);
  }
}

bool is_journal(const std::string& folder) {
  if (!is_plain_file(journal_path(folder))) return false;
  std::ifstream stream(journal_path(folder), std::ios::binary);
  if (!stream) return false;
  std::string line;
  if (!std::getline(stream, line)) return true;
  const auto head = head_of(line);
  return head && head->kind == "head";
}

bool is_being_written(const std::string& folder) {
  if (!is_plain_file(journal_path(folder))) return false;
  const int fd = ::open(journal_path(folder).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  struct flock whole {};
  whole.l_type = F_RDLCK;
  whole.l_whence = SEEK_SET;
  const bool known = ::fcntl(fd, F_OFD_GETLK, &whole) == 0;
  ::close(fd);
  return known && whole.l_type != F_UNLCK;
}

JournalReader::JournalReader(const std::string& folder) : path_(journal_path(folder)) {
  require_plain_file(path_);
  stream_.open(path_, std::ios::binary);
  is_there_ = stream_.is_open();
  std::streamoff start = 0;
  int64_t number = 0;
  for (std::string line; std::getline(stream_, line);) {
    const std::streamoff size = static_cast<std::streamoff>(line.size());
    ++number;
    if (const auto head = head_of(line); head && !stream_.eof()) {
      places_[head->kind][head->number] = {start + static_cast<std::streamoff>(head->text),
                                           line.size() - head->text, number};
    }
    start += size + 1;
  }
}

const JournalReader::Place* JournalReader::find(const std::string& kind, size_t number) const {
  const auto records = places_.find(kind);
  if (records == places_.end()) return nullptr;
  const auto record = records->second.find(number);
  return record == records->second.end() ? nullptr : &record->second;
}

nlohmann::json JournalReader::json(const std::string& kind, size_t number) {
  const Place* place = find(kind, number);
  if (place == nullptr) {
    throw_bad_input(
        fmt::format("{}: the journal is damaged: its record \"{}\" is not whole", path_, kind),
        "run the cases again");
  }
  return parse_json_object(path_, text(kind, number), place->line);
}

std::string JournalReader::text(const std::string& kind, size_t number) {
  const Place* place = find(kind, number);
  if (place == nullptr) return "";
  std::string text(place->size, '\0');
  stream_.clear();
  stream_.seekg(place->start);
  stream_.read(text.data(), static_cast<std::streamsize>(text.size()));
  return text;
}

std::vector<size_t> JournalReader::numbers(const std::string& kind) const {
  std::vector<size_t> numbers;
  const auto records = places_.find(kind);
  if (records == places_.end()) return numbers;
  for (const auto& [number, place] : records->second) numbers.push_back(number);
  return numbers;
}

std::vector<size_t> JournalReader::finished() const {
  std::vector<size_t> whole = numbers("case");
  for (const char* kind : {"events", "junit"}) {
    const auto records = places_.find(kind);
    std::erase_if(whole, [&](size_t number) {
      return records == places_.end() || records->second.count(number) == 0;
    });
  }
  return whole;
}

}  // namespace shardproof::sim::report
