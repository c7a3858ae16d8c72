// One HTTP request and its answer, as handlers see them: no socket, no parser, no thread of their own.
//
// A handler answers each exchange exactly once, at any time and from any thread: either respond(), or start_stream(),
// any number of write()s and finish(). What is sent after the client left is dropped.
//
// Errors   answering twice, or writing outside of a stream, throws CheckError: a handler's bug.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::http {

using Headers = std::vector<std::pair<std::string, std::string>>;  // names in lower case, in order of arrival

struct Request {
  std::string method = {};  // "GET"; a HEAD comes as a GET, and the body of its answer is dropped
  std::string path = {};    // percent-decoded, without the query: "/v1/models"
  std::string query = {};   // as it came, without the question mark
  Headers headers = {};
  std::string body = {};
  std::string peer = {};     // "127.0.0.1:52113", for logs
  std::string network = {};  // the same for all that are taken for one peer (peer.h)
  std::string id = {};       // the client's x-request-id, or a new one (request_id.h); every answer has it, too
  std::chrono::steady_clock::time_point arrived = std::chrono::steady_clock::now();  // its first bytes

  std::string_view header(std::string_view name) const;  // the first of that name, in lower case; "" when there is none
};

struct Response {
  int status = 200;
  std::string content_type = "application/json";
  std::string body = {};
  Headers headers = {};  // more than those of the content and the connection
};

class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;

  virtual void respond(Response response) = 0;
  virtual void start_stream(Response head) = 0;  // its body, if any, is the stream's first part
  virtual void write(std::string part) = 0;      // never blocks; a client that reads too slowly is cut off (Limits)
  virtual void finish() = 0;

  // Runs once, on an io thread, when the client leaves before its answer is complete; at once if it has left already.
  virtual void on_gone(std::function<void()> action) = 0;
  // Runs the task on an io thread, after all tasks posted to this exchange before, one at a time.
  virtual void post(std::function<void()> task) = 0;
};

using Handler = std::function<void(std::shared_ptr<Exchange>)>;  // on an io thread; what it throws becomes a 500

}  // namespace quire::http
