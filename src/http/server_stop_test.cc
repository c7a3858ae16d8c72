// How a server ends: gently, at once, and before those who still hold its exchanges.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "http/server.h"
#include "http/testing_client.h"
#include "http/testing_server.h"

namespace quire::http {
namespace {

using namespace std::chrono_literals;

constexpr std::string_view kRequest = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";

TEST(ServerStop, DrainingClosesIdleConnectionsAndFinishesOthers) {
  Held held;
  TestingServer server(held.handler());
  TestingClient idle(server.port()), busy(server.port()), streaming(server.port());
  busy.send(kRequest);
  const auto to_busy = held.next();
  streaming.send(kRequest);
  const auto to_streaming = held.next();
  to_streaming->start_stream({.body = "a"});
  idle.send(kRequest);
  held.next()->respond({});
  idle.read_answer();

  server->stop_accepting();
  EXPECT_TRUE(idle.is_closed());
  idle.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 2; }));
  EXPECT_ANY_THROW(TestingClient(server.port()).get("/"));
  to_streaming->write("b");
  to_streaming->finish();
  to_busy->respond({.body = "done"});
  const ClientAnswer last = busy.read_answer();
  EXPECT_EQ(last.body, "done");
  EXPECT_EQ(last.header("connection"), "close");
  EXPECT_TRUE(busy.is_closed());
  EXPECT_EQ(streaming.read_answer().body, "ab");
  EXPECT_TRUE(streaming.is_closed());
  busy.close();
  streaming.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
}

TEST(ServerStop, ARequestThatHasBegunIsStillAnswered) {
  TestingServer server([](auto exchange) { exchange->respond({.body = exchange->request().body}); });
  TestingClient client(server.port());
  client.send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.read_answer().status, 100);
  server->stop_accepting();
  client.send("ab");
  EXPECT_EQ(client.read_answer().body, "ab");
  EXPECT_TRUE(client.is_closed());
}

// It lies in the socket while the server's only thread is busy.
TEST(ServerStop, ARequestThatNobodyHasReadIsStillAnswered) {
  std::promise<void> begun, may_go_on;
  TestingServer server([&](const std::shared_ptr<Exchange>& exchange) {
    if (exchange->request().path == "/busy") {
      begun.set_value();
      may_go_on.get_future().wait();
    }
    exchange->respond({.body = "ok"});
  });
  TestingClient known(server.port()), busy(server.port());
  EXPECT_EQ(known.get("/").body, "ok");
  busy.send("GET /busy HTTP/1.1\r\nHost: x\r\n\r\n");
  begun.get_future().wait();
  known.send(kRequest);
  TestingClient unknown(server.port());
  unknown.send(kRequest);
  server->stop_accepting();
  may_go_on.set_value();
  EXPECT_EQ(known.read_answer().body, "ok");
  EXPECT_EQ(unknown.read_answer().body, "ok");
  EXPECT_EQ(busy.read_answer().body, "ok");
  EXPECT_TRUE(known.is_closed());
}

// Neither half a head nor a body that goes on and on delays the end by more than Limits::drain.
TEST(ServerStop, WhatIsStillBeingSentHasAMomentToEnd) {
  TestingServer server([](auto exchange) { exchange->respond({}); },
                       {.limits = {.read = 60s, .body = 60s, .body_progress_bytes = 1, .drain = 1s}});
  TestingClient half_head(server.port()), half_body(server.port());
  half_head.send("GET / HT");
  half_body.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx");
  EXPECT_TRUE(soon([&] { return server->stats().body_bytes == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  server->stop_accepting();
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(100ms);
    half_body.send("x");
  }
  EXPECT_EQ(half_body.read_answer().status, 408);
  EXPECT_EQ(half_head.read_answer().status, 408);
  half_body.close();
  half_head.close();
  EXPECT_TRUE(soon([&] { return server->stats().connections == 0; }));
  const auto time = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(time, 1s);
  EXPECT_LT(time, 5s);
}

TEST(ServerStop, EndsStreamsAndTellsTheirHandlers) {
  Held held;
  TestingServer server(held.handler(), {.threads = 2});
  std::vector<TestingClient> clients;
  std::vector<std::shared_ptr<Exchange>> exchanges;
  std::atomic<int> gone = 0;
  for (int i = 0; i < 10; ++i) {
    clients.emplace_back(server.port()).send(kRequest);
    exchanges.push_back(held.next());
    exchanges.back()->on_gone([&] { ++gone; });
    if (i % 2 == 0) exchanges.back()->start_stream({.body = "a"});
  }
  std::atomic<bool> end = false;
  std::thread writer([&] {
    while (!end)
      for (int i = 0; i < 10; i += 2) exchanges[i]->write("part");
  });
  server->stop();
  EXPECT_EQ(gone, 10);
  EXPECT_EQ(server->stats().connections, 0);
  end = true;
  writer.join();
  for (int i = 0; i < 10; i += 2) EXPECT_FALSE(clients[i].read_to_end().ends_with("0\r\n\r\n"));
  server->stop();
}

TEST(ServerStop, ExchangesOutliveTheirServer) {
  Held held;
  auto server = std::make_unique<TestingServer>(held.handler());
  TestingClient first(server->port()), second(server->port()), third(server->port());
  std::vector<std::shared_ptr<Exchange>> exchanges;
  for (TestingClient* client : {&first, &second, &third}) {
    client->send(kRequest);
    exchanges.push_back(held.next());
  }
  exchanges[1]->start_stream({});
  server.reset();
  bool ran = false;
  exchanges[0]->on_gone([&] { ran = true; });
  exchanges[0]->post([&] { ran = true; });
  exchanges[0]->respond({.body = "late"});
  exchanges[1]->write("late");
  exchanges[1]->finish();
  EXPECT_EQ(exchanges[2]->request().path, "/");
  exchanges.clear();
  EXPECT_FALSE(ran) << "there is no io thread to run on";
}

// The action holds the exchange, as handlers' do: a cycle that must be gone with the client.
TEST(ServerStop, NothingIsLeftOfExchangesWithActions) {
  const auto token = std::make_shared<int>();
  {
    Held held;
    TestingServer server(held.handler());
    TestingClient answered(server.port()), left(server.port()), stopped(server.port());
    for (TestingClient* client : {&answered, &left, &stopped}) {
      client->send(kRequest);
      const auto exchange = held.next();
      exchange->on_gone([exchange, token] {});
      if (client == &answered) exchange->respond({});
    }
    left.close();
    EXPECT_TRUE(soon([&] { return server->stats().connections == 2; }));
  }
  EXPECT_EQ(token.use_count(), 1);
}

TEST(ServerStop, AServerMayEndUnstarted) {
  Server server({}, [](auto exchange) { exchange->respond({}); });
  EXPECT_GT(server.port(), 0);
  server.stop();
  expect_refused([&] { server.start(); }, "started twice");
}

TEST(ServerStop, ItsAddressCanBeUsedAgainAtOnce) {
  const auto handler = [](auto exchange) { exchange->respond({}); };
  auto first = std::make_unique<TestingServer>(handler);
  const uint16_t port = first->port();
  TestingClient client(port);
  EXPECT_EQ(client.get("/").status, 200);
  first.reset();
  TestingServer second(handler, {.port = port});
  EXPECT_EQ(TestingClient(port).get("/").status, 200);
}

TEST(ServerStop, StopsWhileClientsComeAndGo) {
  for (int round = 0; round < 5; ++round) {
    TestingServer server([](auto exchange) { exchange->respond({.body = "ok"}); }, {.threads = 2});
    std::atomic<bool> end = false;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&, port = server.port()] {
        while (!end) {
          try {
            TestingClient client(port);
            for (int j = 0; j < 5; ++j) client.get("/");
          } catch (const CheckError&) {  // the server ends in the middle
          }
        }
      });
    EXPECT_TRUE(soon([&] { return server->stats().requests > 50; }));
    if (round % 2) server->stop_accepting();
    server->stop();
    end = true;
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace quire::http
