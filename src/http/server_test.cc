// What clients and handlers may rely on, through real sockets.
#include "http/server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "http/testing_client.h"
#include "http/testing_server.h"

namespace quire::http {
namespace {

using namespace std::chrono_literals;

void echo(const std::shared_ptr<Exchange>& exchange) {
  const Request& request = exchange->request();
  exchange->respond({.content_type = "text/plain",
                     .body = cat(request.method, " ", request.path, "?", request.query, " ", request.body)});
}

TEST(Server, AnswersOnAKeptConnection) {
  TestingServer server(echo);
  TestingClient client(server.port());
  for (int i = 0; i < 3; ++i) {
    const ClientAnswer answer = client.get(cat("/p", i, "?q"));
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, cat("GET /p", i, "?q "));
    EXPECT_EQ(answer.header("content-type"), "text/plain");
    EXPECT_EQ(answer.header("connection"), "");
  }
  EXPECT_EQ(server->stats().connections, 1);
  EXPECT_EQ(server->stats().accepted, 1);
  EXPECT_EQ(server->stats().requests, 3);
  client.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
}

TEST(Server, GivesTheHandlerTheClientsAddress) {
  TestingServer server(
      [](auto exchange) { exchange->respond({.body = exchange->request().network + " " + exchange->request().peer}); });
  EXPECT_TRUE(TestingClient(server.port()).get("/").body.starts_with("127.0.0.1 127.0.0.1:"));
}

TEST(Server, ReadsBodiesInPiecesAndChunks) {
  TestingServer server(echo);
  TestingClient client(server.port());
  client.send("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\n\r\nab");
  client.send("cdef");
  EXPECT_EQ(client.read_answer().body, "POST /a? abcdef");
  client.send("POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
  client.send("2\r\nde\r\n0\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, "POST /a? abcde");
}

TEST(Server, ReadsLargeBodies) {
  TestingServer server([](auto exchange) { exchange->respond({.body = exchange->request().body}); });
  TestingClient client(server.port());
  std::string body(5 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>(i / 1000);
  client.send(cat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(client.read_answer().body, body);
}

TEST(Server, AnswersPipelinedRequestsInOrder) {
  TestingServer server(echo);
  TestingClient client(server.port());
  std::string requests;
  for (int i = 0; i < 50; ++i) requests += cat("POST /", i, " HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\ny");
  client.send(requests);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(client.read_answer().body, cat("POST /", i, "? y"));
}

TEST(Server, HandlesOneRequestOfAConnectionAtATime) {
  Held held;
  TestingServer server(held.handler());
  TestingClient client(server.port());
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\nGET /2 HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto first = held.next();
  EXPECT_EQ(first->request().path, "/1");
  std::this_thread::sleep_for(50ms);
  EXPECT_EQ(server->stats().requests, 1);
  first->respond({.body = "one"});
  const auto second = held.next();
  EXPECT_EQ(second->request().path, "/2");
  second->respond({.body = "two"});
  EXPECT_EQ(client.read_answer().body, "one");
  EXPECT_EQ(client.read_answer().body, "two");
}

TEST(Server, KeepsSomeOfWhatIsSentAheadAndReadsTheRestLater) {
  Held held;
  TestingServer server(held.handler(), {.limits = {.head_bytes = 1024}});
  TestingClient client(server.port());
  const std::string large(200000, 'b');
  client.send("GET /1 HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto first = held.next();
  client.send(cat("POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: ", large.size(), "\r\n\r\n", large));
  std::this_thread::sleep_for(50ms);
  first->respond({});
  const auto second = held.next();
  EXPECT_EQ(second->request().body, large);
  second->respond({.body = "two"});
  client.read_answer();
  EXPECT_EQ(client.read_answer().body, "two");
}

TEST(Server, ClosesWhenAsked) {
  TestingServer server(echo);
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_answer().header("connection"), "close");
  EXPECT_TRUE(client.is_closed());
}

TEST(Server, SpeaksToOldClients) {
  TestingServer server([](auto exchange) {
    if (exchange->request().path == "/stream") {
      exchange->start_stream({});
      exchange->write("a");
      exchange->write("b");
      exchange->finish();
    } else {
      exchange->respond({.body = "short"});
    }
  });
  TestingClient closing(server.port());
  closing.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(closing.read_answer().body, "short");
  EXPECT_TRUE(closing.is_closed());
  TestingClient kept(server.port());
  for (int i = 0; i < 2; ++i) {
    kept.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(kept.read_answer().header("connection"), "keep-alive");
  }
  kept.send("GET /stream HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const ClientAnswer stream = kept.read_answer();
  EXPECT_EQ(stream.header("transfer-encoding"), "");
  EXPECT_EQ(stream.header("connection"), "close");
  EXPECT_EQ(stream.body, "ab");
}

TEST(Server, AnswersHeadLikeGetWithoutTheBody) {
  TestingServer server(echo);
  TestingClient client(server.port());
  client.send("HEAD /p HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientAnswer answer = client.read_answer(true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.header("content-length"), "8");
  EXPECT_EQ(client.get("/p").body, "GET /p? ");
}

TEST(Server, InvitesABodyThatWaitsForIt) {
  TestingServer server(echo);
  TestingClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 100);
  client.send("ab");
  EXPECT_EQ(client.read_answer().body, "POST /? ab");
}

TEST(Server, StreamsPartsAsTheyCome) {
  Held held;
  TestingServer server(held.handler());
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  exchange->start_stream({.content_type = "text/event-stream", .body = "data: 0\n\n"});
  client.read_until("data: 0\n\n\r\n");
  for (int i = 1; i < 20; ++i) {
    exchange->write(cat("data: ", i, "\n\n"));
    EXPECT_NE(client.read_until("\n\n\r\n").find(cat("data: ", i, "\n\n")), std::string::npos);
  }
  exchange->finish();
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  client.send("GET /again HTTP/1.1\r\nHost: x\r\n\r\n");
  held.next()->respond({.body = "kept"});
  EXPECT_EQ(client.read_answer().body, "kept");
}

// One call of the system for all that gathered.
TEST(Server, SendsThePartsOfOneTaskTogether) {
  Held held;
  TestingServer server(held.handler());
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  exchange->start_stream({});
  client.read_until("\r\n\r\n");
  std::string expected;
  for (int i = 0; i < 200; ++i) expected += "6\r\nevent\n\r\n";
  exchange->post([&] {
    for (int i = 0; i < 200; ++i) exchange->write("event\n");
  });
  EXPECT_EQ(client.read_some(), expected);
  exchange->finish();
}

TEST(Server, KeepsTheOrderOfManyPartsFromManyThreads) {
  constexpr int kStreams = 8, kParts = 2000;
  Held held;
  TestingServer server(held.handler(), {.threads = 2});
  std::vector<std::thread> threads;
  std::vector<TestingClient> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back(server.port()).send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    threads.emplace_back([exchange = held.next()] {
      exchange->start_stream({});
      for (int part = 0; part < kParts; ++part) exchange->write(cat(part, ","));
      exchange->finish();
    });
  }
  std::string expected;
  for (int part = 0; part < kParts; ++part) expected += cat(part, ",");
  for (TestingClient& client : clients) EXPECT_EQ(client.read_answer().body, expected);
  for (std::thread& thread : threads) thread.join();
}

TEST(Server, NoticesAClientThatLeavesBeforeItsAnswer) {
  for (const bool by_reset : {false, true}) {
    Held held;
    TestingServer server(held.handler());
    TestingClient client(server.port());
    client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    const auto exchange = held.next();
    std::string order;
    std::promise<void> second;
    exchange->on_gone([&] { order += "a"; });
    exchange->on_gone([&] {
      order += "b";
      second.set_value();
    });
    const auto start = std::chrono::steady_clock::now();
    by_reset ? client.reset() : client.close();
    ASSERT_EQ(second.get_future().wait_for(5s), std::future_status::ready);
    EXPECT_LT(std::chrono::steady_clock::now() - start, 1s);
    EXPECT_EQ(order, "ab");
    exchange->respond({.body = "to nobody"});
    EXPECT_EQ(server->stats().connections, 0);
    std::promise<std::thread::id> late;
    exchange->post([&] { late.set_value(std::this_thread::get_id()); });  // work for it may still need its order
    EXPECT_NE(late.get_future().get(), std::this_thread::get_id());
  }
}

TEST(Server, NoticesAClientThatLeavesAStream) {
  Held held;
  TestingServer server(held.handler());
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::promise<void> gone;
  exchange->start_stream({.body = "x"});
  exchange->on_gone([&] { gone.set_value(); });
  client.read_until("x");
  client.close();
  ASSERT_EQ(gone.get_future().wait_for(5s), std::future_status::ready);
  exchange->write("dropped");
  exchange->finish();
}

TEST(Server, SaysNothingOfClientsThatLeaveAfterTheirAnswer) {
  std::atomic<int> gone = 0;
  TestingServer server([&](auto exchange) {
    exchange->on_gone([&] { ++gone; });
    exchange->respond({});
  });
  TestingClient client(server.port());
  client.get("/");
  client.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
  EXPECT_EQ(gone, 0);
}

TEST(Server, RunsPostedTasksInOrderOneAtATime) {
  Held held;
  TestingServer server(held.handler(), {.threads = 4});
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::vector<int> order;  // no lock: the tasks must not overlap
  std::promise<void> done;
  for (int i = 0; i < 1000; ++i) exchange->post([&order, i] { order.push_back(i); });
  exchange->post([&] { done.set_value(); });
  done.get_future().wait();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  exchange->respond({});
}

TEST(Server, ThrowingHandlersAnswer500) {
  TestingServer server([](auto exchange) {
    const std::string& path = exchange->request().path;
    if (path == "/throw") throw std::runtime_error("secret");
    if (path == "/odd") throw 7;
    if (path == "/post") return exchange->post([] { throw std::runtime_error("secret"); });
    if (path == "/forget") return;
    if (path == "/stream") {
      exchange->start_stream({.body = "begun"});
      throw std::runtime_error("secret");
    }
    exchange->respond({.body = "fine"});
    throw std::runtime_error("after the answer");
  });
  for (const char* path : {"/throw", "/odd", "/post", "/forget"}) {
    const ClientAnswer answer = TestingClient(server.port()).get(path);
    EXPECT_EQ(answer.status, 500) << path;
    EXPECT_EQ(answer.body.find("secret"), std::string::npos);
    EXPECT_NE(answer.body.find("server_error"), std::string::npos);
  }
  TestingClient streaming(server.port());
  streaming.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_FALSE(streaming.read_to_end().ends_with("0\r\n\r\n")) << "a broken stream looks whole";
  EXPECT_EQ(TestingClient(server.port()).get("/fine").body, "fine");
}

TEST(Server, MalformedRequestsGetAnErrorAndTheEnd) {
  TestingServer server(echo);
  TestingClient client(server.port());
  client.send("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n");
  const ClientAnswer answer = client.read_answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.header("connection"), "close");
  EXPECT_TRUE(answer.body.starts_with(R"({"error":{"message":)")) << answer.body;
  EXPECT_TRUE(answer.body.ends_with(R"("type":"invalid_request_error","param":null,"code":null}})")) << answer.body;
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(server->stats().requests, 0);
}

TEST(Server, OtherProtocolsAreClosedWithoutAWord) {
  TestingServer server(echo);
  for (const std::string_view bytes : {std::string_view("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", 33),
                                       std::string_view("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11)}) {
    TestingClient client(server.port());
    client.send(bytes);
    EXPECT_EQ(client.read_to_end(), "");
  }
  EXPECT_EQ(TestingClient(server.port()).get("/").status, 200);
}

bool machine_has_ipv6() {
  const int socket = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = ::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(socket);
  return bound;
}

TEST(Server, ListensOnIpv6) {
  if (!machine_has_ipv6()) GTEST_SKIP() << "this machine has no ::1";
  TestingServer server(echo, {.host = "::1"});
  EXPECT_EQ(TestingClient::on_ipv6(server.port()).get("/").body, "GET /? ");
}

TEST(Server, ListensOnNames) {
  TestingServer server(echo, {.host = "localhost"});
  EXPECT_GT(server.port(), 0);
}

TEST(Server, SaysWhyItCannotListen) {
  TestingServer server(echo);
  const uint16_t port = server.port();
  expect_refused([&] { Server({.port = port}, echo); }, cat("cannot listen on 127.0.0.1:", port, ": "));
  expect_refused([] { Server({.host = "2001:db8::1"}, echo); }, "cannot listen on [2001:db8::1]:0: ");
  expect_refused([] { Server({.host = "no such host"}, echo); }, "cannot listen on no such host:0: ");
  expect_refused([] { Server({}, nullptr); }, "without a handler");
  expect_refused([] { Server({.threads = 0}, echo); }, "0 threads");
  expect_refused([] { Server({.limits = {.head_bytes = 10}}, echo); }, "10 bytes");
}

TEST(Server, EveryAnswerHasTheRequestsId) {
  TestingServer server([](auto exchange) {
    const Request& request = exchange->request();
    if (request.path == "/fails") throw CheckError("no");
    if (request.path != "/stream") return exchange->respond({.body = request.id});
    exchange->start_stream({.body = request.id});
    exchange->finish();
  });
  TestingClient client(server.port());
  for (const char* path : {"/", "/stream"}) {
    client.send(cat("GET ", path, " HTTP/1.1\r\nHost: x\r\nX-Request-ID: trace-7\r\n\r\n"));
    const ClientAnswer named = client.read_answer();
    EXPECT_EQ(named.header("x-request-id"), "trace-7");
    EXPECT_EQ(named.body, "trace-7");
    const ClientAnswer unnamed = client.get(path);
    EXPECT_TRUE(unnamed.header("x-request-id").starts_with("req-"));
    EXPECT_EQ(unnamed.header("x-request-id"), unnamed.body);
  }
  client.send("GET /fails HTTP/1.1\r\nHost: x\r\nX-Request-ID: trace-8\r\n\r\n");
  const ClientAnswer failed = client.read_answer();
  EXPECT_EQ(failed.status, 500);
  EXPECT_EQ(failed.header("x-request-id"), "trace-8");
}

}  // namespace
}  // namespace quire::http
