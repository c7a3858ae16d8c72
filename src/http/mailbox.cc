#include "http/mailbox.h"

#include <utility>

namespace quire::http {

bool Mailbox::called() { return open_ && !std::exchange(called_, true); }

bool Mailbox::send(std::string bytes) {
  const std::lock_guard lock(mutex_);
  if (open_) mail_.bytes.add(std::move(bytes));
  return called();
}

bool Mailbox::finish(bool keep_alive) {
  const std::lock_guard lock(mutex_);
  mail_.finished = true;
  mail_.keep_alive = keep_alive;
  return called();
}

bool Mailbox::cut() {
  const std::lock_guard lock(mutex_);
  mail_.cut = true;
  return called();
}

Mailbox::Mail Mailbox::take() {
  const std::lock_guard lock(mutex_);
  called_ = false;
  return std::exchange(mail_, {});
}

void Mailbox::close() {
  const std::lock_guard lock(mutex_);
  open_ = false;
  mail_ = {};
}

}  // namespace quire::http
