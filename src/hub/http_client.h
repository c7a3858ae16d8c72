// A blocking HTTP/1.1 client: one call, one connection; through a proxy where the environment names one; redirects
// followed; bodies streamed, never kept.
//
// A token goes to the host that was called and to no other: where a redirect leads elsewhere (another scheme, host or
// port), it is left out. A redirect from https to http is refused.
//
// Errors   NetworkError: no answer, or only a part of one (also a body that ends early).
//          CheckError: an answer that is not HTTP, a certificate that is not trusted, redirects without an end.
//          What on_head and on_body throw ends the call and passes through.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hub/answer_reader.h"
#include "hub/connection.h"
#include "hub/pipe_signal.h"
#include "hub/response_head.h"
#include "hub/settings.h"
#include "hub/url.h"

namespace quire::hub {

struct HttpCall {
  std::string method = "GET";  // or HEAD
  Url url;
  std::string token = {};                                           // "": none
  std::vector<std::pair<std::string, std::string>> headers = {};    // beside Host and the like
  std::function<bool(const ResponseHead&, const Url& to)> follows;  // asked at each redirect; empty: yes
  std::function<void(const ResponseHead&)> on_head;                 // told the last answer's, before its body
  std::function<void(std::string_view)> on_body;                    // told the body of a 2xx answer, piece by piece
};

class HttpClient {
 public:
  explicit HttpClient(const Settings& settings);

  ResponseHead call(HttpCall call);  // the last answer's, with its body told to the end

 private:
  struct Asked {
    std::unique_ptr<Connection> connection;
    std::unique_ptr<AnswerReader> answer;  // from that connection
  };
  Asked ask(const HttpCall& call);
  std::unique_ptr<Connection> connect(const Url& url);
  std::unique_ptr<Connection> connect_through(const Url& proxy, const std::string& credentials, const Url& url);
  const std::shared_ptr<SSL_CTX>& authorities();

  const PipeSignalIgnored pipe_signal_;  // OpenSSL writes to sockets without a way to turn it off
  const Environment environment_;
  const std::chrono::milliseconds silence_;
  std::shared_ptr<SSL_CTX> authorities_;  // once they are needed
};

}  // namespace quire::hub
