// One client's connection: reads a request, has it handled, sends the answer, and again. Everything but the sink's
// functions runs on the connection's strand, one thing at a time.
//
//   handshake > idle > reading > working > idle ...        lingering > closed, from anywhere
//
// A client that closes its sending side counts as one that left: the two cannot be told apart.
//
// idle       waits for the first byte with no parser and no buffer
// reading    a head and a body. Between them the head is judged (server.h), and what is refused goes on to working
// working    an exchange is open. Reading goes on, to notice a client that leaves; what comes is kept for the next
//            request, up to Limits::head_bytes, and past that the socket is left alone
// lingering  the last answer is out and the client was told so; what it still sends is dropped for a moment, since
//            closing with bytes unread would destroy the answer on its way
//
// What handlers send gathers in a mailbox and is flushed by one task on the strand, however many parts there are.
#pragma once
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "http/byte_queue.h"
#include "http/live_exchange.h"
#include "http/mailbox.h"
#include "http/request_parser.h"
#include "http/server_core.h"
#include "http/stream.h"

namespace quire::http {

class Connection final : public AnswerSink, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::basic_stream_socket<boost::asio::ip::tcp, Strand>;

  Connection(std::shared_ptr<ServerCore> core, Socket socket);
  // From any thread.
  void start();
  void drain();  // one that nothing came on closes, another one after its answer; one that sends has a moment to end
  void abort();  // closes

  // AnswerSink
  void send(std::string bytes) override;
  void finish(bool keep_alive) override;
  void cut() override;
  bool last_answer() const override { return core_->draining; }
  void post(std::function<void()> task) override;

  const std::string& network() const { return network_; }

 private:
  enum class Phase { handshake, idle, reading, working, lingering, closed };
  using Wait = boost::asio::socket_base::wait_type;
  using Timer = boost::asio::basic_waitable_timer<std::chrono::steady_clock,
                                                  boost::asio::wait_traits<std::chrono::steady_clock>, Strand>;

  void run(void (Connection::*step)());
  void begin();

  // Waiting
  void wait(Wait direction);
  void on_ready();
  void set_deadline(std::chrono::seconds time);
  void clear_deadline();
  void on_deadline();

  // Reading
  void shake_hands();
  void read_input();
  bool read_once();  // false: nothing more to read now
  size_t room_for_input() const;
  void take_input(std::string_view bytes);
  void parse(std::string_view bytes);
  bool judge_head();       // false: the handler refuses it, whatever its body
  bool hold_body();        // false: refused, bodies are over a limit
  void demand_progress();  // of the body, by the deadline
  void begin_exchange(bool whole);
  void refuse(const Refusal& refusal);

  // Writing
  void flush_later(bool wanted);
  void flush();
  void write_unsent();
  void wait_to_write(Wait direction, bool progress);
  void cut_slow();
  void end_answer();
  void next_request();
  void end_idle();  // while draining
  void linger();
  void close();

  const std::shared_ptr<ServerCore> core_;
  Socket socket_;
  const boost::asio::ip::tcp::endpoint peer_;
  const std::string network_;  // of the peer, whose budget and share of the connections it uses
  Timer timer_;
  std::unique_ptr<Stream> stream_;
  Phase phase_ = Phase::handshake;
  bool waits_to_read_ = false, waits_to_write_ = false;
  bool stalled_ = false;  // a write does not go on; the deadline is that of its progress

  std::unique_ptr<RequestParser> parser_;  // while reading
  std::optional<BodyBudget::Share> body_;  // of the request that is received; then the exchange has it
  size_t next_progress_ = 0;               // at so many bytes of a body its deadline moves
  std::string ahead_;                      // of the next request
  std::weak_ptr<LiveExchange> exchange_;   // while working
  ByteQueue unsent_;
  BodyBudget::Share unread_;      // for as much of it as the socket did not take
  bool answer_complete_ = false;  // what is unsent ends the answer
  bool keep_alive_ = true;        // after it

  Mailbox mailbox_;
};

}  // namespace quire::http
