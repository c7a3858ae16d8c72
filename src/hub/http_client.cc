#include "hub/http_client.h"

#include "base/base64.h"
#include "hub/proxy.h"

namespace quire::hub {
namespace {

constexpr int kMostRedirects = 10;

std::string proxy_authorization(const std::string& credentials) {
  return credentials.empty() ? "" : cat("Proxy-Authorization: Basic ", in_base64(credentials), "\r\n");
}

std::string request_text(const HttpCall& call, const std::string& target, const std::string& more) {
  std::string text = cat(call.method, " ", target, " HTTP/1.1\r\nHost: ", call.url.authority(),
                         "\r\nUser-Agent: quire\r\nAccept: */*\r\nAccept-Encoding: identity\r\nConnection: close\r\n");
  for (const auto& [name, value] : call.headers) text += cat(name, ": ", value, "\r\n");
  if (!call.token.empty()) text += cat("Authorization: Bearer ", call.token, "\r\n");
  return text + more + "\r\n";
}

AnswerReader answers_of(Connection& connection) {
  return AnswerReader([&connection](std::span<char> bytes) { return connection.read(bytes); });
}

Url next_of(const Url& from, const ResponseHead& head) {
  Url to = redirected(from, head.header("location").value());
  check(to.is_https() || !from.is_https(), from.host, " redirects from https to http, which is not followed");
  return to;
}

}  // namespace

HttpClient::HttpClient(const Settings& settings) : environment_(settings.environment), silence_(settings.silence) {}

const std::shared_ptr<SSL_CTX>& HttpClient::authorities() {
  if (!authorities_) authorities_ = trusted_authorities();
  return authorities_;
}

std::unique_ptr<Connection> HttpClient::connect(const Url& url) {
  auto connection = std::make_unique<Connection>(url.host, url.port, silence_);
  if (url.is_https()) connection->start_tls(url.host, authorities());
  return connection;
}

// A tunnel: what goes through it is between us and the host.
std::unique_ptr<Connection> HttpClient::connect_through(const Url& proxy, const std::string& credentials,
                                                        const Url& url) {
  auto connection = std::make_unique<Connection>(proxy.host, proxy.port, silence_);
  const std::string place = (url.host.find(':') == url.host.npos ? url.host : "[" + url.host + "]") + ":" + url.port;
  connection->write(
      cat("CONNECT ", place, " HTTP/1.1\r\nHost: ", place, "\r\n", proxy_authorization(credentials), "\r\n"));
  const int status = answers_of(*connection).read_head().status;
  if (status / 100 != 2)
    throw NetworkError(cat("the proxy ", proxy.authority(), " does not connect to ", url.host, ": status ", status),
                       false);
  connection->start_tls(url.host, authorities());
  return connection;
}

// Asks, as far as the answer's head.
HttpClient::Asked HttpClient::ask(const HttpCall& call) {
  const std::optional<Proxy> proxy = proxy_for(call.url, environment_);
  Asked asked;
  std::string target = call.url.target, more;
  if (!proxy) {
    asked.connection = connect(call.url);
  } else if (call.url.is_https()) {
    asked.connection = connect_through(proxy->url, proxy->credentials, call.url);
  } else {
    asked.connection = connect(proxy->url);
    target = to_string(call.url);
    more = proxy_authorization(proxy->credentials);
  }
  asked.connection->write(request_text(call, target, more));
  asked.answer = std::make_unique<AnswerReader>(answers_of(*asked.connection));
  return asked;
}

ResponseHead HttpClient::call(HttpCall call) {
  for (int redirects = 0; redirects <= kMostRedirects; ++redirects) {
    const Asked asked = ask(call);
    const ResponseHead head = asked.answer->read_head();
    if (head.is_redirect()) {
      const Url to = next_of(call.url, head);
      if (!call.follows || call.follows(head, to)) {
        if (!to.same_origin(call.url)) call.token.clear();
        call.url = to;
        continue;
      }
    }
    if (call.on_head) call.on_head(head);
    const bool has_body = call.method != "HEAD" && head.status / 100 == 2 && head.status != 204;
    if (has_body && call.on_body) asked.answer->read_body(head, call.on_body);
    return head;
  }
  throw CheckError(cat(call.url.host, " redirects more than ", kMostRedirects, " times"));
}

}  // namespace quire::hub
