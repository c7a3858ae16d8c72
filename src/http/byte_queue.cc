#include "http/byte_queue.h"

#include <utility>

namespace quire::http {
namespace {

constexpr size_t kJoined = 32 << 10;  // parts are joined up to this size

}  // namespace

void ByteQueue::add(std::string part) {
  if (part.empty()) return;
  size_ += part.size();
  if (!parts_.empty() && parts_.back().size() + part.size() <= kJoined) {
    parts_.back() += part;
  } else {
    parts_.push_back(std::move(part));
  }
}

void ByteQueue::add(ByteQueue&& other) {
  if (empty()) {
    std::swap(*this, other);
  } else {
    for (std::string& part : other.parts_) add(std::move(part));
  }
  other.clear();
}

std::string_view ByteQueue::front() const { return std::string_view(parts_.front()).substr(taken_); }

void ByteQueue::take(size_t count) {
  size_ -= count;
  taken_ += count;
  if (taken_ < parts_.front().size()) return;
  parts_.pop_front();
  taken_ = 0;
}

void ByteQueue::clear() { *this = {}; }

}  // namespace quire::http
