#include "serving_connection.h"

#include <utility>

namespace quire::bench {

void Connection::ask(std::string bytes, Time began) {
  bytes_ = std::move(bytes);
  began_ = began;
  busy_ = true;
  failure_.clear();
  reused_ = is_open();
  if (!reused_) open();
  begin_exchange();
}

bool Connection::advance(Time now) {
  if (!busy_) return drop_if_closed();
  std::string received;
  const bool sent = socket_.send(unsent_);
  watch();  // before the end: a connection that is idle then must not wake anyone because it could send
  const bool lives = sent && socket_.receive(received);
  answer_.feed(received, now);
  if (!lives) answer_.end();
  if (answer_.complete()) return finish();
  return !lives && fail();
}

void Connection::open() {
  socket_ = Socket(address_);
  readiness_.add(socket_.descriptor(), index_, watches_send_ = true);
}

void Connection::begin_exchange() {
  unsent_ = bytes_;
  answer_ = {};
  watch();
}

// A kept connection may have been closed just as it was used again; that is not the request's fault.
bool Connection::fail() {
  if (std::exchange(reused_, false) && !answer_.begun()) {
    open();
    begin_exchange();
    return false;
  }
  failure_ = socket_.error().empty() ? "the connection ended before the answer did" : socket_.error();
  return finish();
}

void Connection::watch() {
  const bool wants_to_send = !unsent_.empty();
  if (wants_to_send != watches_send_) readiness_.change(socket_.descriptor(), index_, wants_to_send);
  watches_send_ = wants_to_send;
}

bool Connection::finish() {
  busy_ = false;
  if (!answer_.keeps_alive()) socket_ = {};
  return true;
}

bool Connection::drop_if_closed() {
  std::string ignored;
  if (is_open() && !socket_.receive(ignored)) socket_ = {};
  return false;
}

}  // namespace quire::bench
