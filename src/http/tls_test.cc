#include "http/tls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/testing/expect_refused.h"
#include "base/testing/temporary_folder.h"
#include "http/server.h"
#include "http/testing_certificate.h"
#include "http/testing_client.h"
#include "http/testing_server.h"

namespace quire::http {
namespace {

using namespace std::chrono_literals;
using Speaks = TestingClient::Speaks;

struct Tls {
  TemporaryFolder folder;
  CertificateFiles files = make_certificate(folder.path(), "server");
  ServerOptions options(const Limits& limits = {}) const {
    return {.limits = limits, .certificate_file = files.certificate, .key_file = files.key};
  }
};

TestingClient shaken(uint16_t port, int receive_buffer = 0) {
  TestingClient client(port, Speaks::tls, receive_buffer);
  check(client.shakes_hands(), "no handshake");
  return client;
}

TEST(Tls, CarriesRequestsAndStreams) {
  const Tls tls;
  TestingServer server(
      [](auto exchange) {
        if (exchange->request().path != "/stream") return exchange->respond({.body = exchange->request().body});
        exchange->start_stream({});
        for (int i = 0; i < 100; ++i) exchange->write(cat(i, ","));
        exchange->finish();
      },
      tls.options());
  TestingClient client = shaken(server.port());
  std::string body(3 << 20, 'x');
  for (size_t i = 0; i < body.size(); i += 1000) body[i] = static_cast<char>(i / 1000);
  client.send(cat("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(client.read_answer().body, body);
  std::string numbers;
  for (int i = 0; i < 100; ++i) numbers += cat(i, ",");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.get("/stream").body, numbers);
  client.send("GET /stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(client.read_answer().body, numbers);
  EXPECT_TRUE(client.is_closed());
}

TEST(Tls, AnswersPipelinedRequests) {
  const Tls tls;
  TestingServer server([](auto exchange) { exchange->respond({.body = exchange->request().path}); }, tls.options());
  TestingClient client = shaken(server.port());
  std::string requests;
  for (int i = 0; i < 2000; ++i) requests += cat("GET /", i, " HTTP/1.1\r\nHost: x\r\n\r\n");
  client.send(requests);
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(client.read_answer().body, cat("/", i));
}

TEST(Tls, NoticesAClientThatLeaves) {
  const Tls tls;
  Held held;
  TestingServer server(held.handler(), tls.options());
  TestingClient client = shaken(server.port());
  client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::promise<void> gone;
  exchange->on_gone([&] { gone.set_value(); });
  client.close();
  EXPECT_EQ(gone.get_future().wait_for(5s), std::future_status::ready);
}

TEST(Tls, ASlowReaderIsCut) {
  const Tls tls;
  Held held;
  TestingServer server(held.handler(), tls.options({.write = 1s}));
  TestingClient stuck = shaken(server.port(), 4096);
  stuck.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto exchange = held.next();
  std::promise<void> gone;
  exchange->on_gone([&] { gone.set_value(); });
  exchange->start_stream({.body = std::string(32 << 20, 'x')});
  ASSERT_EQ(gone.get_future().wait_for(30s), std::future_status::ready);
  EXPECT_EQ(server->stats().cut_slow, 1);
}

TEST(Tls, PlainHttpOnTheTlsPortIsToldSo) {
  const Tls tls;
  std::promise<Refused> refused;
  TestingServer server([](auto exchange) { exchange->respond({}); }, tls.options(),
                       {.on_refused = [&](const Refused& one) { refused.set_value(one); }});
  TestingClient plain(server.port());
  plain.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  const ClientAnswer answer = plain.read_answer();
  EXPECT_EQ(answer.status, 400);
  EXPECT_NE(answer.body.find("this port speaks TLS"), std::string::npos) << answer.body;
  EXPECT_TRUE(plain.is_closed());
  EXPECT_TRUE(refused.get_future().get().peer.starts_with("127.0.0.1:"));
  EXPECT_EQ(shaken(server.port()).get("/").status, 200);
  EXPECT_EQ(server->stats().requests, 1);
}

TEST(Tls, OtherTextOnTheTlsPortIsClosed) {
  const Tls tls;
  TestingServer server([](auto exchange) { exchange->respond({}); }, tls.options());
  TestingClient plain(server.port());
  plain.send("something else\r\n\r\n");
  EXPECT_EQ(plain.read_to_end().find("HTTP/1.1"), std::string::npos);
}

TEST(Tls, OnlyModernSuitesAreSpoken) {
  const Tls tls;
  TestingServer server([](auto exchange) { exchange->respond({}); }, tls.options());
  const auto speaks = [&](const char* suites) {
    TestingClient client(server.port(), Speaks::tls);
    client.offer_only(suites);
    return client.shakes_hands();
  };
  EXPECT_TRUE(speaks("ECDHE-ECDSA-AES128-GCM-SHA256"));
  EXPECT_TRUE(speaks("ECDHE-ECDSA-CHACHA20-POLY1305"));
  for (const char* old : {"ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA384", "ECDHE-ECDSA-AES128-CCM"})
    EXPECT_FALSE(speaks(old)) << old;
}

TEST(Tls, ANewCertificateIsUsedFromThenOn) {
  const Tls tls;
  TestingServer server([](auto exchange) { exchange->respond({}); }, tls.options());
  TestingClient before = shaken(server.port());
  const std::string first = before.certificate();
  make_certificate(tls.folder.path(), "server");
  EXPECT_EQ(shaken(server.port()).certificate(), first) << "before it is told";
  server->reload_certificate();
  const std::string second = shaken(server.port()).certificate();
  EXPECT_NE(second, first);
  EXPECT_EQ(before.get("/").status, 200) << "open connections go on";
  tls.folder.put("server.crt", "broken");
  expect_refused([&] { server->reload_certificate(); }, "server.crt cannot be used");
  EXPECT_EQ(shaken(server.port()).certificate(), second) << "a broken file changes nothing";
}

TEST(Tls, AHandshakeThatStopsIsClosed) {
  const Tls tls;
  TestingServer server([](auto exchange) { exchange->respond({}); }, tls.options({.read = 1s}));
  TestingClient silent(server.port());
  EXPECT_TRUE(silent.is_closed());
}

TEST(Tls, TakesKeysWithAPassword) {
  const TemporaryFolder folder;
  const CertificateFiles files = make_certificate(folder.path(), "locked", "sesame");
  const auto handler = [](auto exchange) { exchange->respond({.body = "in"}); };
  TestingServer server(handler,
                       {.certificate_file = files.certificate, .key_file = files.key, .key_password = "sesame"});
  EXPECT_EQ(shaken(server.port()).get("/").body, "in");
  expect_refused([&] { TlsContext(files.certificate, files.key, "wrong"); }, files.key);
  expect_refused([&] { TlsContext(files.certificate, files.key, ""); }, files.key);
}

TEST(Tls, SaysWhatIsWrongWithItsFiles) {
  const TemporaryFolder folder;
  const CertificateFiles files = make_certificate(folder.path(), "one");
  const CertificateFiles others = make_certificate(folder.path(), "other");
  const std::string junk = folder.put("junk", "no certificate");
  const auto handler = [](auto exchange) { exchange->respond({}); };
  expect_refused([&] { TlsContext("/no/such/file", files.key, ""); },
                 "the certificate file /no/such/file cannot be used: No such file or directory");
  expect_refused([&] { TlsContext(junk, files.key, ""); }, junk + " cannot be used: ");
  expect_refused([&] { TlsContext(files.certificate, junk, ""); }, "the key file " + junk);
  expect_refused([&] { TlsContext(files.certificate, others.key, ""); }, "key values mismatch");
  expect_refused([&] { Server({.certificate_file = files.certificate}, handler); }, "both");
}

}  // namespace
}  // namespace quire::http
