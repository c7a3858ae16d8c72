// One connection to a server, kept from request to request, and the exchange that is under way on it.
#pragma once
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>

#include "serving_answer.h"
#include "serving_readiness.h"
#include "serving_socket.h"

namespace quire::bench {

class Connection {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // index: what `readiness` calls it
  Connection(const Address& address, Readiness& readiness, size_t index)
      : address_(address), readiness_(readiness), index_(index) {}

  bool busy() const { return busy_; }
  bool is_open() const { return socket_.is_open(); }
  // Of the last exchange.
  Time began() const { return began_; }
  const AnswerReader& answer() const { return answer_; }
  const std::string& failure() const { return failure_; }  // "" when the answer is complete

  void ask(std::string bytes, Time began);
  bool advance(Time now);  // sends and receives what is possible; true: the exchange has ended, well or badly

 private:
  void open();
  void begin_exchange();
  bool fail();
  void watch();
  bool finish();
  bool drop_if_closed();

  const Address& address_;
  Readiness& readiness_;
  size_t index_;
  Socket socket_ = {};
  bool busy_ = false, reused_ = false, watches_send_ = false;
  std::string bytes_ = {};
  std::string_view unsent_ = {};
  AnswerReader answer_ = {};
  Time began_ = {};
  std::string failure_ = {};
};

}  // namespace quire::bench
