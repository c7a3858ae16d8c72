// Bytes on their way to a client. Small parts are joined as they come, so that what gathered while the socket was
// busy goes out in one call, in plain text and in TLS; a large part is kept as it is, not copied.
#pragma once
#include <cstddef>
#include <list>
#include <string>
#include <string_view>

namespace quire::http {

class ByteQueue {
 public:
  void add(std::string part);
  void add(ByteQueue&& other);  // of which nothing was taken; it is empty afterwards

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  size_t held_bytes() const { return size_ + taken_; }  // a part is let go when the last of it is taken
  // The next bytes, some of them. They stay the beginning of front() until they are taken, whatever is added.
  std::string_view front() const;
  void take(size_t count);  // no more than front() has
  void clear();             // also gives the memory back

 private:
  std::list<std::string> parts_;  // none is empty
  size_t taken_ = 0;              // of the first part
  size_t size_ = 0;
};

}  // namespace quire::http
