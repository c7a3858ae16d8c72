// Clients that send too much, read too little, wait too long or are too many.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/testing/temporary_folder.h"
#include "http/server.h"
#include "http/testing_certificate.h"
#include "http/testing_client.h"
#include "http/testing_server.h"

namespace quire::http {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Speaks = TestingClient::Speaks;

void answer(const std::shared_ptr<Exchange>& exchange) { exchange->respond({.body = "ok"}); }

TEST(ServerLimits, HeadsAndHeaderCounts) {
  TestingServer server(answer);
  TestingClient long_head(server.port());
  long_head.send(cat("GET / HTTP/1.1\r\nHost: x\r\nX: ", std::string(20000, 'x'), "\r\n\r\n"));
  EXPECT_EQ(long_head.read_answer().status, 431);
  EXPECT_TRUE(long_head.is_closed());
  TestingClient many(server.port());
  std::string head = "GET / HTTP/1.1\r\nHost: x\r\n";
  for (int i = 0; i < 200; ++i) head += "X: y\r\n";
  many.send(head + "\r\n");
  EXPECT_EQ(many.read_answer().status, 431);
}

TEST(ServerLimits, BodiesOfAKnownLengthAreRefusedByTheirHead) {
  TestingServer server(answer, {.limits = {.body_bytes = 1000}});
  TestingClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 413);
  EXPECT_TRUE(client.is_closed());
}

// Closing while the client still sends would destroy the answer before it is read.
TEST(ServerLimits, TheRefusalOfALargeBodyArrives) {
  TestingServer server(answer, {.limits = {.body_bytes = 1000}});
  TestingClient client(server.port());
  const std::string body(3 << 20, 'x');
  client.send(cat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(client.read_answer().status, 413);
}

TEST(ServerLimits, ChunkedBodiesAreHeldToTheSameLimit) {
  TestingServer server(answer, {.limits = {.body_bytes = 1000}});
  TestingClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) client.send(cat("64\r\n", std::string(100, 'x'), "\r\n"));
  EXPECT_EQ(client.read_answer().status, 413);
}

TEST(ServerLimits, AllBodiesTogetherAreHeldToALimit) {
  std::promise<void> may_answer;
  const std::shared_future<void> asked = may_answer.get_future().share();
  std::vector<std::thread> answering;
  TestingServer server(
      [&](const std::shared_ptr<Exchange>& exchange) {
        answering.emplace_back([exchange, asked] {
          asked.wait();
          answer(exchange);
        });
      },
      {.limits = {.all_body_bytes = 2500}});
  const std::string request = cat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", std::string(1000, 'x'));
  TestingClient worked_on(server.port()), half_sent(server.port()), late(server.port());
  worked_on.send(request);
  EXPECT_TRUE(soon([&] { return server->stats().requests == 1; }));
  half_sent.send(request.substr(0, request.size() - 1));
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1999; }));
  late.send(request);
  EXPECT_EQ(late.read_answer().status, 503);
  half_sent.send("x");
  may_answer.set_value();
  EXPECT_EQ(worked_on.read_answer().status, 200);
  EXPECT_EQ(half_sent.read_answer().status, 200);
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 0; }));
  worked_on.send(request);
  EXPECT_EQ(worked_on.read_answer().status, 200);
  for (std::thread& thread : answering) thread.join();
}

// A judge that lets nobody in but to /in, with bodies of up to a thousand bytes.
std::optional<size_t> only_in(const Request& head) {
  return head.path == "/in" ? std::optional<size_t>(1000) : std::nullopt;
}

void refuse_or_echo(const std::shared_ptr<Exchange>& exchange) {
  const Request& request = exchange->request();
  exchange->respond({.status = request.path == "/in" ? 200 : 404, .body = std::to_string(request.body.size())});
}

// All but one byte of large bodies, on many sockets, to where nobody is let in: answered at once, and nothing is held.
TEST(ServerLimits, WhatIsRefusedByItsHeadHoldsNoBody) {
  TestingServer server(refuse_or_echo, {.limits = {.body_bytes = 2000, .all_body_bytes = 4000, .body = 60s}},
                       {.judge = only_in});
  std::vector<TestingClient> attackers;
  for (int i = 0; i < 16; ++i) {
    TestingClient& attacker = attackers.emplace_back(server.port());
    attacker.send(cat("POST /out HTTP/1.1\r\nHost: x\r\nContent-Length: 2000\r\n\r\n", std::string(1999, 'x')));
    const ClientAnswer answer = attacker.read_answer();
    EXPECT_EQ(answer.status, 404);
    EXPECT_EQ(answer.body, "0") << "the handler got a body";
    EXPECT_TRUE(attacker.is_closed());
  }
  EXPECT_EQ(server->stats().body_bytes, 0u);
  TestingClient caller(server.port());
  caller.send(cat("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", std::string(1000, 'x')));
  EXPECT_EQ(caller.read_answer().body, "1000");
}

// Who waits to be invited is not, and learns why instead.
TEST(ServerLimits, WhatIsRefusedByItsHeadIsNotInvited) {
  TestingServer server(refuse_or_echo, {}, {.judge = only_in});
  TestingClient client(server.port());
  client.send("POST /out HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 10\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 404);
  EXPECT_TRUE(client.is_closed());
}

TEST(ServerLimits, TheHeadGivesABodyItsOwnLimit) {
  TestingServer server(refuse_or_echo, {.limits = {.body_bytes = 2000}}, {.judge = only_in});
  TestingClient announced(server.port()), chunked(server.port());
  announced.send("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n");
  const ClientAnswer answer = announced.read_answer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_NE(answer.body.find("longer than 1000 bytes"), std::string::npos) << answer.body;
  chunked.send("POST /in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 11; ++i) chunked.send(cat("64\r\n", std::string(100, 'x'), "\r\n"));
  EXPECT_EQ(chunked.read_answer().status, 413);
}

TEST(ServerLimits, ARefusalWhoseBodyIsThereKeepsTheConnection) {
  TestingServer server(refuse_or_echo, {}, {.judge = only_in});
  TestingClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    client.send("POST /out HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
    EXPECT_EQ(client.read_answer().status, 404);
  }
  client.send("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}");
  EXPECT_EQ(client.read_answer().body, "2");
  EXPECT_EQ(server->stats().accepted, 1);
}

// One peer holds all that it may, and the others do not notice.
TEST(ServerLimits, OnePeerCannotTakeTheOthersBudget) {
  TestingServer server(refuse_or_echo, {.limits = {.all_body_bytes = 4000, .peer_body_bytes = 2500}});
  const std::string request =
      cat("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", std::string(999, 'x'));
  std::vector<TestingClient> attackers;
  for (int i = 0; i < 16; ++i) attackers.push_back(TestingClient::from("127.0.0.2", server.port()));
  for (int i = 0; i < 2; ++i) attackers[i].send(request);
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1998; }));
  for (int i = 2; i < 16; ++i) {
    attackers[i].send(request);
    const ClientAnswer answer = attackers[i].read_answer();
    EXPECT_EQ(answer.status, 503);
    EXPECT_EQ(answer.header("retry-after"), "1");
    EXPECT_NE(answer.body.find("from this address"), std::string::npos) << answer.body;
  }
  TestingClient other(server.port());
  other.send(request + "x");
  EXPECT_EQ(other.read_answer().body, "1000");
  attackers[0].send("x");
  EXPECT_EQ(attackers[0].read_answer().body, "1000");
}

// Nobody knows how long a chunked body will be: what has come of it counts, and no more than the peer may have is kept.
TEST(ServerLimits, AChunkedBodyIsRefusedWhenItOutgrowsItsPeersBudget) {
  TestingServer server(refuse_or_echo, {.limits = {.peer_body_bytes = 1500}});
  TestingClient first(server.port()), chunked(server.port());
  first.send(cat("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", std::string(1000, 'x')));
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1000; }));
  chunked.send("POST /in HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = cat("64\r\n", std::string(100, 'x'), "\r\n");
  for (int i = 0; i < 5; ++i) chunked.send(chunk);
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1500; }));
  chunked.send(chunk);
  const ClientAnswer answer = chunked.read_answer();
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("from this address"), std::string::npos) << answer.body;
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1000; })) << "what was kept of it is let go";
}

TEST(ServerLimits, RefusalsAreReported) {
  std::mutex mutex;
  std::vector<Refused> refusals;
  TestingServer server(answer, {.limits = {.body_bytes = 10}}, {.on_refused = [&](const Refused& refused) {
                         const std::lock_guard lock(mutex);
                         refusals.push_back(refused);
                       }});
  TestingClient large(server.port()), broken(server.port());
  large.send("POST /in HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine\r\nContent-Length: 11\r\n\r\n");
  EXPECT_EQ(large.read_answer().header("x-request-id"), "mine");
  broken.send("get / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(broken.read_answer().header("x-request-id").starts_with("req-"));
  const std::lock_guard lock(mutex);
  ASSERT_EQ(refusals.size(), 2u);
  EXPECT_EQ(refusals[0].method + refusals[0].path + refusals[0].id, "POST/inmine");
  EXPECT_EQ(refusals[0].status, 413);
  EXPECT_EQ(refusals[0].reason, "the body is longer than 10 bytes");
  EXPECT_TRUE(refusals[0].peer.starts_with("127.0.0.1:"));
  EXPECT_EQ(refusals[1].status, 400);
  EXPECT_EQ(refusals[1].path, "");
}

// A client that leaves does not take along the body that somebody still works on.
TEST(ServerLimits, ABodyIsCountedUntilItIsLetGo) {
  Held held;
  TestingServer server(held.handler(), {.limits = {.all_body_bytes = 1500}});
  const std::string request = cat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", std::string(1000, 'x'));
  TestingClient leaves(server.port()), late(server.port());
  leaves.send(request);
  std::shared_ptr<Exchange> worked_on = held.next();
  leaves.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 1; }));
  EXPECT_EQ(server->stats().body_bytes, 1000u);
  late.send(request);
  EXPECT_EQ(late.read_answer().status, 503);
  worked_on.reset();
  EXPECT_EQ(server->stats().body_bytes, 0u);
}

TEST(ServerLimits, OnePeerCannotTakeAllConnections) {
  TestingServer server(answer, {.limits = {.connections = 4, .peer_connections = 2}});
  std::vector<TestingClient> attackers;
  for (int i = 0; i < 2; ++i) attackers.push_back(TestingClient::from("127.0.0.2", server.port()));
  EXPECT_TRUE(soon([&] { return server->stats().connections == 2; }));
  EXPECT_TRUE(TestingClient::from("127.0.0.2", server.port()).is_closed());
  EXPECT_EQ(TestingClient(server.port()).get("/").status, 200);
  attackers[0].close();
  EXPECT_TRUE(soon([&] { return server->stats().connections <= 2; }));
  EXPECT_TRUE(soon([&] {
    try {
      return TestingClient::from("127.0.0.2", server.port()).get("/").status == 200;
    } catch (const CheckError&) {
      return false;
    }
  }));
}

TEST(ServerLimits, ConnectionsPastTheLimitAreClosed) {
  TestingServer server(answer, {.limits = {.connections = 2}});
  TestingClient first(server.port()), second(server.port());
  EXPECT_EQ(first.get("/").status, 200);
  EXPECT_EQ(second.get("/").status, 200);
  EXPECT_TRUE(TestingClient(server.port()).is_closed());
  first.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 1; }));
  EXPECT_EQ(TestingClient(server.port()).get("/").status, 200);
}

TEST(ServerLimits, IdleConnectionsAreClosedAfterAWhile) {
  TestingServer server(answer, {.limits = {.idle = 1s}});
  TestingClient silent(server.port()), kept(server.port());
  const auto start = Clock::now();
  EXPECT_EQ(kept.get("/").status, 200);
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(kept.is_closed());
  EXPECT_GT(Clock::now() - start, 900ms);
}

TEST(ServerLimits, SlowHeadsAndBodiesAreRefused) {
  TestingServer server(answer, {.limits = {.read = 1s, .body = 1s}});
  TestingClient slow_head(server.port()), slow_body(server.port());
  const auto start = Clock::now();
  slow_head.send("GET / HT");
  slow_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc");
  for (int i = 0; i < 6; ++i) {  // each byte comes in time, all of them do not
    std::this_thread::sleep_for(100ms);
    slow_head.send("T");
  }
  EXPECT_EQ(slow_head.read_answer().status, 408);
  EXPECT_EQ(slow_body.read_answer().status, 408);
  EXPECT_TRUE(slow_head.is_closed());
  EXPECT_LT(Clock::now() - start, 5s);
}

// Slow as a whole, but never for long; one that brings a byte now and then is.
TEST(ServerLimits, ABodyHasTimeAsLongAsItGoesOn) {
  TestingServer server(refuse_or_echo, {.limits = {.body = 1s, .body_progress_bytes = 100}});
  TestingClient steady(server.port()), dripping(server.port());
  steady.send("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 700\r\n\r\n");
  dripping.send("POST /in HTTP/1.1\r\nHost: x\r\nContent-Length: 700\r\n\r\n");
  const auto start = Clock::now();
  for (int i = 0; i < 7; ++i) {
    std::this_thread::sleep_for(200ms);
    steady.send(std::string(100, 'x'));
    if (i < 4) dripping.send("x");
  }
  EXPECT_EQ(steady.read_answer().body, "700");
  EXPECT_GT(Clock::now() - start, 1s);
  EXPECT_EQ(dripping.read_answer().status, 408);
}

TEST(ServerLimits, AWorkingHandlerHasAllTheTimeItNeeds) {
  Held held;
  TestingServer server(held.handler(), {.limits = {.idle = 1s, .read = 1s, .write = 1s}});
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::this_thread::sleep_for(1500ms);
  exchange->start_stream({.body = "a"});
  std::this_thread::sleep_for(1500ms);
  exchange->finish();
  EXPECT_EQ(client.read_answer().body, "a");
}

// One stream is read and the other is not: the second is cut, and the first does not notice.
TEST(ServerLimits, ASlowReaderIsCutAndOthersAreNot) {
  Held held;
  TestingServer server(held.handler(), {.limits = {.unsent_bytes = 1 << 20, .write = 60s}});
  TestingClient reading(server.port()), stuck(server.port(), Speaks::plain, 4096);
  reading.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto to_reading = held.next();
  stuck.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto to_stuck = held.next();
  std::atomic<bool> cut = false;
  to_stuck->on_gone([&] { cut = true; });
  to_stuck->start_stream({});
  to_reading->start_stream({});

  auto read = std::async(std::launch::async, [&] { return reading.read_answer(); });
  const std::string part(16 << 10, 'x');
  size_t written = 0;
  for (int i = 0; i < 10000 && !cut; ++i) {
    to_reading->write(part);
    to_stuck->write(part);
    written += part.size();
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(cut);
  to_reading->finish();
  EXPECT_EQ(read.get().body.size(), written);
  EXPECT_EQ(server->stats().cut_slow, 1);
  EXPECT_EQ(server->stats().connections, 1);
  EXPECT_LT(written, 64u << 20) << "unsent bytes were not held to their limit";
}

// Each answer is in memory until its client has read it: those who take their time have so much together, and others
// have theirs.
TEST(ServerLimits, AnswersThatWaitToBeReadAreHeldToALimit) {
  constexpr size_t kBytes = 16 << 20;
  TestingServer server([](auto exchange) { exchange->respond({.body = std::string(kBytes, 'x')}); },
                       {.limits = {.all_unsent_bytes = 3 * kBytes, .peer_unsent_bytes = 2 * kBytes, .write = 60s}});
  std::vector<TestingClient> slow;
  for (int i = 0; i < 3; ++i) {
    slow.push_back(TestingClient::from("127.0.0.2", server.port()));
    slow.back().send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.back().read_until("\r\n\r\n");  // and no more
    EXPECT_TRUE(soon([&] { return server->stats().requests == i + 1; }));
  }
  EXPECT_TRUE(soon([&] { return server->stats().cut_slow == 1; }));
  TestingClient other(server.port());
  EXPECT_EQ(other.get("/").body.size(), kBytes);
  EXPECT_EQ(slow.front().read_count(kBytes).size(), kBytes) << "who came before goes on";
  EXPECT_EQ(slow.front().get("/").body.size(), kBytes) << "what was read is given back";
  EXPECT_EQ(server->stats().cut_slow, 1);
}

TEST(ServerLimits, AWriteWithoutProgressIsCut) {
  Held held;
  TestingServer server(held.handler(), {.limits = {.write = 1s}});
  TestingClient stuck(server.port(), Speaks::plain, 4096);
  stuck.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::promise<void> gone;
  exchange->on_gone([&] { gone.set_value(); });
  const auto start = Clock::now();
  exchange->start_stream({.body = std::string(32 << 20, 'x')});
  ASSERT_EQ(gone.get_future().wait_for(20s), std::future_status::ready);
  EXPECT_GT(Clock::now() - start, 900ms);
  EXPECT_EQ(server->stats().cut_slow, 1);
}

TEST(ServerLimits, ASlowReaderWhoMakesProgressIsNotCut) {
  TestingServer server([](auto exchange) { exchange->respond({.body = std::string(24 << 20, 'x')}); },
                       {.limits = {.unsent_bytes = 1 << 20, .write = 1s}});
  TestingClient slow(server.port(), Speaks::plain, 1 << 20);
  slow.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  slow.read_until("\r\n\r\n");
  for (int i = 0; i < 24; ++i) {
    std::this_thread::sleep_for(100ms);
    EXPECT_EQ(slow.read_count(1 << 20).size(), size_t{1} << 20);
  }
  EXPECT_EQ(server->stats().cut_slow, 0);
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

int files_open() {
  const int next = dup(0);  // the lowest free number
  close(next);
  return next;
}

TEST(ServerLimits, RunningOutOfFilesIsAPauseNotAnEnd) {
  TestingServer server(answer);
  TestingClient before(server.port());
  EXPECT_EQ(before.get("/").status, 200);
  rlimit normal{};
  getrlimit(RLIMIT_NOFILE, &normal);
  rlimit tight = normal;
  tight.rlim_cur = files_open() + 1;  // for the client's end, and none for the server's
  setrlimit(RLIMIT_NOFILE, &tight);
  TestingClient waiting(server.port());
  waiting.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const double used = cpu_seconds();
  std::this_thread::sleep_for(500ms);
  EXPECT_LT(cpu_seconds() - used, 0.25) << "the loop spins";
  EXPECT_EQ(server->stats().accepted, 1);
  EXPECT_EQ(before.get("/").status, 200);
  setrlimit(RLIMIT_NOFILE, &normal);
  EXPECT_EQ(waiting.read_answer().status, 200);
}

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryTells = false;  // sanitizers keep what was freed, and books on everything
#else
constexpr bool kMemoryTells = true;
#endif

// Connections that have each had an answer and now wait. The clients' ends are in this process, too, but hold next to
// nothing.
void expect_little_memory(const ServerOptions& options, Speaks speaks, int count, double most) {
  constexpr int kFirst = 20;  // pay for what all share
  TestingServer server(answer, options);
  std::vector<TestingClient> clients;
  clients.reserve(count);
  size_t before = 0;
  for (int i = 0; i < count; ++i) {
    if (i == kFirst) before = resident_bytes();
    TestingClient& client = clients.emplace_back(server.port(), speaks);
    ASSERT_TRUE(speaks == Speaks::plain || client.shakes_hands());
    ASSERT_EQ(client.get("/").status, 200);
    client.forget_tls();
  }
  const double each = (static_cast<double>(resident_bytes()) - static_cast<double>(before)) / (count - kFirst);
  EXPECT_EQ(server->stats().connections, count);
  std::printf("%d idle connections: %.1f KiB each\n", count, each / 1024);
  if (!kMemoryTells) GTEST_SKIP() << "a sanitizer's own memory hides that of connections";
  EXPECT_LT(each, most);
}

TEST(ServerLimits, AThousandIdleConnectionsCostLittle) { expect_little_memory({}, Speaks::plain, 1000, 16 << 10); }

TEST(ServerLimits, IdleTlsConnectionsCostLittle) {
  const TemporaryFolder folder;
  const CertificateFiles files = make_certificate(folder.path(), "server");
  expect_little_memory({.certificate_file = files.certificate, .key_file = files.key}, Speaks::tls, 300, 64 << 10);
}

}  // namespace
}  // namespace quire::http
