// For tests of OpenAI's interface: calls as their callers make them, and what comes back.
#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "serve/api_error.h"
#include "serve/openai.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

namespace quire::serve::testing {

template <class Body>
void expect_api_error(Body&& body, int status, const std::string& param, const std::string& part = {}) {
  try {
    body();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, status) << error.what();
    EXPECT_EQ(error.param, param) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return;
  }
  ADD_FAILURE() << "nothing was thrown; expected an ApiError about " << param;
}

using Handler = void (*)(std::shared_ptr<http::Exchange>, Service&, const Caller&);

// The exchange of a call, once it was answered.
inline std::shared_ptr<TestingExchange> answered(Handler call, Service& service, const nlohmann::ordered_json& body) {
  const auto exchange = posted("/v1", body.dump());
  call(exchange, service, {});
  EXPECT_TRUE(exchange->wait_until_ended());
  return exchange;
}

inline nlohmann::ordered_json answer(Handler call, Service& service, const nlohmann::ordered_json& body) {
  const auto exchange = answered(call, service, body);
  EXPECT_EQ(exchange->status(), 200) << exchange->body();
  return nlohmann::ordered_json::parse(exchange->body(), nullptr, false);
}

// The JSON of all events of a stream, without the [DONE] that must be its last.
inline std::vector<nlohmann::ordered_json> events_of(const std::string& stream) {
  std::vector<nlohmann::ordered_json> events;
  bool done = false;
  for (size_t at = 0; at < stream.size();) {
    const size_t end = stream.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << stream;
    EXPECT_FALSE(done) << "an event after the last";
    const std::string event = stream.substr(at, end - at);
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    done = event == "data: [DONE]";
    if (!done) events.push_back(nlohmann::ordered_json::parse(event.substr(6), nullptr, false));
    EXPECT_FALSE(!done && events.back().is_discarded()) << event;
    at = end + 2;
  }
  EXPECT_TRUE(done) << stream;
  return events;
}

inline std::vector<nlohmann::ordered_json> streamed(Handler call, Service& service, nlohmann::ordered_json body) {
  body["stream"] = true;
  const auto exchange = answered(call, service, body);
  EXPECT_TRUE(exchange->streams());
  EXPECT_EQ(exchange->response().content_type, "text/event-stream");
  return events_of(exchange->body());
}

}  // namespace quire::serve::testing
