#include "interrupt.h"

namespace quire {
namespace {

volatile std::sig_atomic_t interrupted = 0;

extern "C" void note_interrupt(int) { interrupted = 1; }

}  // namespace

Interrupt::Interrupt() {
  interrupted = 0;
  struct sigaction action = {};
  action.sa_handler = note_interrupt;  // without SA_RESTART: a read that waits for a line gives up
  sigaction(SIGINT, &action, &before_);
}

Interrupt::~Interrupt() { sigaction(SIGINT, &before_, nullptr); }

bool Interrupt::happened() const { return interrupted != 0; }

void Interrupt::forget() { interrupted = 0; }

}  // namespace quire
