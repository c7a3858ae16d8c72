#include "http/connection.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/socket_base.hpp>
#include <chrono>
#include <exception>
#include <utility>

#include "http/peer.h"
#include "http/request_id.h"
#include "http/response_text.h"

namespace quire::http {
namespace {

using boost::system::error_code;
using Outcome = Moved::Outcome;
constexpr auto kToRead = boost::asio::socket_base::wait_read;
constexpr auto kToWrite = boost::asio::socket_base::wait_write;

constexpr size_t kReadBytes = 64 << 10;
constexpr int kReadsInARow = 16;  // then other connections have their turn
constexpr std::chrono::seconds kLinger{2};

boost::asio::ip::tcp::endpoint peer_of(const Connection::Socket& socket) {
  error_code gone_already;
  return socket.remote_endpoint(gone_already);
}

}  // namespace

Connection::Connection(std::shared_ptr<ServerCore> core, Socket socket)
    : core_(std::move(core)),
      socket_(std::move(socket)),
      peer_(peer_of(socket_)),
      network_(network_of(peer_.address())),
      timer_(socket_.get_executor()),
      stream_(core_->stream(socket_.native_handle())),
      unread_(core_->unread, network_) {}

void Connection::start() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->run(&Connection::begin); });
}

void Connection::drain() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] {
    if (self->phase_ == Phase::handshake) self->close();
    if (self->phase_ == Phase::reading) self->set_deadline(self->core_->limits.drain);
    if (self->phase_ == Phase::idle) self->run(&Connection::end_idle);
  });
}

void Connection::abort() {
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->close(); });
}

// No memory, say: this connection ends, and the others go on.
void Connection::run(void (Connection::*step)()) {
  if (phase_ == Phase::closed) return;
  try {
    (this->*step)();
  } catch (const std::exception&) {
    close();
  }
}

void Connection::begin() {
  set_deadline(core_->limits.read);
  shake_hands();
}

// Waiting

void Connection::wait(Wait direction) {
  bool& waits = direction == kToRead ? waits_to_read_ : waits_to_write_;
  if (std::exchange(waits, true)) return;
  socket_.async_wait(direction, [self = shared_from_this(), &waits](const error_code& error) {
    waits = false;
    self->run(error ? &Connection::close : &Connection::on_ready);
  });
}

// TLS may have to write before it can read on, and the other way round: whatever is ready, both are tried.
void Connection::on_ready() {
  if (phase_ == Phase::handshake) return shake_hands();
  read_input();
  if (phase_ != Phase::closed && !unsent_.empty()) write_unsent();
}

void Connection::set_deadline(std::chrono::seconds time) {
  timer_.expires_after(time);
  timer_.async_wait([self = shared_from_this()](const error_code& error) {
    const bool moved = std::chrono::steady_clock::now() < self->timer_.expiry();  // after it expired, before this ran
    if (!error && !moved) self->run(&Connection::on_deadline);
  });
}

void Connection::clear_deadline() { timer_.expires_at(std::chrono::steady_clock::time_point::max()); }

void Connection::on_deadline() {
  if (phase_ == Phase::working) return cut_slow();
  if (phase_ == Phase::reading) return refuse({408, "the request did not arrive in time"});
  close();
}

// Reading

void Connection::shake_hands() {
  const Moved moved = stream_->handshake();
  switch (moved.outcome) {
    case Outcome::done:
      return next_request();
    case Outcome::wants_read:
      return wait(kToRead);
    case Outcome::wants_write:
      return wait(kToWrite);
    case Outcome::plain_http:
      stream_ = plain_stream(socket_.native_handle());
      return refuse({400, "this port speaks TLS; the address begins with https://"});
    case Outcome::closed:
      return close();
  }
}

// A request that the socket has already would be lost without a word: it is answered like others that are on their way.
void Connection::end_idle() {
  read_input();
  if (phase_ == Phase::idle) close();
}

void Connection::next_request() {
  phase_ = Phase::idle;
  if (core_->draining) return end_idle();
  set_deadline(core_->limits.idle);
  const std::string bytes = std::exchange(ahead_, {});
  if (!bytes.empty()) take_input(bytes);
  if (!waits_to_read_) read_input();
}

void Connection::read_input() {
  for (int round = 0; round < kReadsInARow; ++round)
    if (!read_once()) return;
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->run(&Connection::read_input); });
}

bool Connection::read_once() {
  char bytes[kReadBytes];
  const size_t room = room_for_input();
  if (room == 0) return false;
  const Moved moved = stream_->read({bytes, room});
  switch (moved.outcome) {
    case Outcome::done:
      take_input({bytes, moved.bytes});
      return true;
    case Outcome::wants_read:
      wait(kToRead);
      return false;
    case Outcome::wants_write:
      wait(kToWrite);
      return false;
    default:
      close();
      return false;
  }
}

size_t Connection::room_for_input() const {
  if (phase_ == Phase::closed) return 0;
  if (phase_ != Phase::working) return kReadBytes;
  return std::min(kReadBytes, core_->limits.head_bytes - std::min(core_->limits.head_bytes, ahead_.size()));
}

void Connection::take_input(std::string_view bytes) {
  if (phase_ == Phase::working) ahead_ += bytes;
  if (phase_ == Phase::idle) {
    phase_ = Phase::reading;
    parser_ = std::make_unique<RequestParser>(core_->limits);
    body_.emplace(core_->bodies, network_);
    set_deadline(core_->draining ? core_->limits.drain : core_->limits.read);
  }
  if (phase_ == Phase::reading) parse(bytes);
}

void Connection::parse(std::string_view bytes) {
  using State = RequestParser::State;
  const State before = parser_->state();
  size_t used = parser_->feed(bytes);
  const bool head_came = before == State::head && parser_->state() == State::body;
  const bool welcome = !head_came || judge_head();
  if (parser_->state() == State::body) used += parser_->feed(bytes.substr(used));
  if (parser_->state() == State::refused) return refuse(Refusal(parser_->refusal()));
  if (!hold_body()) return;
  if (parser_->state() == State::done) {
    ahead_ = bytes.substr(used);
    return begin_exchange(true);
  }
  if (!welcome) return begin_exchange(false);
  if (parser_->state() != State::body) return;
  demand_progress();
  if (head_came && parser_->terms().expects_continue) {
    unsent_.add(std::string(kContinue));
    write_unsent();
  }
}

bool Connection::judge_head() {
  next_progress_ = 0;
  if (!core_->hooks.judge) return true;
  const std::optional<size_t> most = core_->hooks.judge(parser_->head());
  if (most) parser_->limit_body(*most);
  return most.has_value();
}

bool Connection::hold_body() {
  using Held = BodyBudget::Outcome;
  const Held outcome = body_->grow_to(parser_->body_bytes());
  if (outcome == Held::held) return true;
  refuse({503, outcome == Held::peer_has_too_much ? "too much comes from this address at once; try again later"
                                                  : "too much is being received at once; try again later"});
  return false;
}

void Connection::demand_progress() {
  if (parser_->body_bytes() < next_progress_ || core_->draining) return;
  next_progress_ = parser_->body_bytes() + core_->limits.body_progress_bytes;
  set_deadline(core_->limits.body);
}

// What is not whole was refused by its head: its body is not read, so nothing can come after it.
void Connection::begin_exchange(bool whole) {
  AnswerTerms terms = parser_->terms();
  Request request = parser_->take();
  if (!whole) {
    terms.keep_alive = false;
    request.body = {};
    body_->release();
  }
  request.peer = text_of(peer_);
  request.network = network_;
  request.id = request_id(request.header("x-request-id"));
  parser_.reset();
  clear_deadline();
  phase_ = Phase::working;
  ++core_->requests;
  const auto exchange =
      std::make_shared<LiveExchange>(shared_from_this(), std::move(request), terms, std::move(*body_));
  body_.reset();
  exchange_ = exchange;
  try {
    core_->handler(exchange);
  } catch (...) {
    exchange->fail();
  }
}

void Connection::refuse(const Refusal& refusal) {
  if (refusal.status == 0) return close();
  static const Request kNone;
  const Request& head = parser_ ? parser_->head() : kNone;
  const std::string id = request_id(head.header("x-request-id"));
  if (core_->hooks.on_refused)
    core_->hooks.on_refused({text_of(peer_), id, head.method, head.path, refusal.status, refusal.message});
  parser_.reset();
  body_.reset();
  clear_deadline();
  phase_ = Phase::working;
  Response response = error_response(refusal.status, refusal.message);
  response.headers.emplace_back("x-request-id", id);
  if (refusal.status == 503) response.headers.emplace_back("retry-after", "1");
  unsent_.add(response_head(response, Framing::length, false, false) + response.body);
  answer_complete_ = true;
  keep_alive_ = false;
  write_unsent();
}

// Writing

void Connection::send(std::string bytes) { flush_later(mailbox_.send(std::move(bytes))); }
void Connection::finish(bool keep_alive) { flush_later(mailbox_.finish(keep_alive)); }
void Connection::cut() { flush_later(mailbox_.cut()); }

void Connection::flush_later(bool wanted) {
  if (wanted) post([self = shared_from_this()] { self->run(&Connection::flush); });
}

void Connection::post(std::function<void()> task) { core_->post(socket_.get_executor(), std::move(task)); }

void Connection::flush() {
  Mailbox::Mail mail = mailbox_.take();
  if (mail.cut) return close();
  if (!mail.bytes.empty() && unsent_.size() > core_->limits.unsent_bytes) return cut_slow();
  unsent_.add(std::move(mail.bytes));
  if (mail.finished) {
    answer_complete_ = true;
    keep_alive_ = mail.keep_alive;
  }
  write_unsent();
}

void Connection::write_unsent() {
  bool progress = false;
  while (!unsent_.empty()) {
    const Moved moved = stream_->write(unsent_.front());
    switch (moved.outcome) {
      case Outcome::done:
        unsent_.take(moved.bytes);
        break;
      case Outcome::wants_read:
        return wait_to_write(kToRead, progress);
      case Outcome::wants_write:
        return wait_to_write(kToWrite, progress);
      default:
        return close();
    }
    progress = true;
  }
  unread_.release();
  if (std::exchange(stalled_, false)) clear_deadline();
  if (answer_complete_) end_answer();
}

void Connection::wait_to_write(Wait direction, bool progress) {
  unread_.shrink_to(unsent_.held_bytes());
  if (unread_.grow_to(unsent_.held_bytes()) != BodyBudget::Outcome::held) return cut_slow();
  if (phase_ == Phase::working && (progress || !stalled_)) {
    stalled_ = true;
    set_deadline(core_->limits.write);
  }
  wait(direction);
}

void Connection::cut_slow() {
  ++core_->cut_slow;
  error_code ignored;
  socket_.set_option(boost::asio::socket_base::linger(true, 0), ignored);  // what the kernel holds is dropped, too
  close();
}

void Connection::end_answer() {
  answer_complete_ = false;
  exchange_.reset();
  if (keep_alive_ && !core_->draining) return next_request();
  linger();
}

void Connection::linger() {
  phase_ = Phase::lingering;
  ahead_ = {};
  stream_->end_writing();
  set_deadline(kLinger);
  if (!waits_to_read_) read_input();
}

void Connection::close() {
  if (phase_ == Phase::closed) return;
  if (phase_ == Phase::idle) stream_->end_writing();
  phase_ = Phase::closed;
  timer_.cancel();
  stream_.reset();
  error_code ignored;
  socket_.close(ignored);
  parser_.reset();
  body_.reset();
  ahead_ = {};
  unsent_.clear();
  unread_.release();
  mailbox_.close();
  core_->remove(this);
  if (const auto exchange = exchange_.lock()) exchange->client_left();
}

}  // namespace quire::http
