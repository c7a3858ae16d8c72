// While one lives, writing to a connection that the other side has closed is an error and does not end the process.
#pragma once
#include <csignal>

namespace quire::hub {

class PipeSignalIgnored {
 public:
  PipeSignalIgnored() {
    struct sigaction ignore = {};
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before_);
  }
  ~PipeSignalIgnored() { sigaction(SIGPIPE, &before_, nullptr); }
  PipeSignalIgnored(const PipeSignalIgnored&) = delete;
  PipeSignalIgnored& operator=(const PipeSignalIgnored&) = delete;

 private:
  struct sigaction before_ = {};
};

}  // namespace quire::hub
