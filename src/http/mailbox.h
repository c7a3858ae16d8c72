// What handlers, on any thread, leave for a connection, which takes it on its own strand: all that gathered, at once.
#pragma once
#include <mutex>
#include <string>

#include "http/byte_queue.h"

namespace quire::http {

class Mailbox {
 public:
  struct Mail {
    ByteQueue bytes = {};
    bool finished = false;   // the bytes end the answer
    bool keep_alive = true;  // after it
    bool cut = false;        // the answer cannot be completed
  };

  // These say whether the connection has to be called: not when it was already, or when the box is closed.
  [[nodiscard]] bool send(std::string bytes);
  [[nodiscard]] bool finish(bool keep_alive);
  [[nodiscard]] bool cut();

  Mail take();
  void close();  // what is in it, and what will come, is dropped

 private:
  bool called();

  std::mutex mutex_;
  Mail mail_;
  bool open_ = true;
  bool called_ = false;
};

}  // namespace quire::http
