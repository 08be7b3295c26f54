#include "sim/world/process/record_buffer.h"

#include "base/error.h"

namespace shardproof::sim::world {

char* RecordBuffer::room(size_t most) {
  if (begin_ == end_) clear();
  if (begin_ > 0 && bytes_.size() - end_ < most) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (bytes_.size() - end_ < most) bytes_.resize(end_ + most);
  return bytes_.data() + end_;
}

void RecordBuffer::arrived(size_t count) {
  SHARDPROOF_ASSERT(count <= bytes_.size() - end_, "more bytes arrived than there was room for");
  end_ += count;
}

}  // namespace shardproof::sim::world
