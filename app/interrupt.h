// Ctrl-C as something to ask about: while an Interrupt lives, the signal is counted instead of ending the process, and
// a blocking read returns. One at a time.
#pragma once
#include <csignal>

namespace quire {

constexpr int kInterruptedExit = 130;  // what shells report for a process that Ctrl-C ended

class Interrupt {
 public:
  Interrupt();
  ~Interrupt();  // the signal does again what it did before
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool happened() const;
  void forget();  // as if it had not happened

 private:
  struct sigaction before_;
};

}  // namespace quire
