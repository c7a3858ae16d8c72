// The body of a call from anywhere: read, run for a few steps on a tiny model, and given up. The first character says
// which call.
#include <string>
#include <utility>

#include "fuzz.h"
#include "serve/api_error.h"
#include "serve/openai.h"
#include "serve/sglang.h"
#include "serve/testing_exchange.h"
#include "serve/testing_service.h"

using namespace quire;

namespace {

using Answer = void (*)(std::shared_ptr<http::Exchange>, serve::Service&, const serve::Caller&);

template <void (*function)(std::shared_ptr<http::Exchange>, serve::Service&)>
void for_anyone(std::shared_ptr<http::Exchange> exchange, serve::Service& service, const serve::Caller&) {
  function(std::move(exchange), service);
}

constexpr Answer kAnswers[] = {serve::chat_completions, serve::completions,          serve::embeddings,
                               serve::generate,         for_anyone<serve::tokenize>, for_anyone<serve::detokenize>,
                               serve::abort_request};

serve::testing::TinyService& tiny() {
  static serve::testing::TinyService service(
      {.engine = {.max_total_tokens = 1024, .max_running_requests = 4}, .loop = false});
  return service;
}

void answer(Answer function, const std::shared_ptr<serve::testing::TestingExchange>& exchange) {
  try {  // what else is thrown, CheckError too, is the server's fault
    function(exchange, tiny().service(), {});
  } catch (const serve::ApiError& error) {
    fuzz::promise(error.status >= 400 && error.status < 600 && error.status != 500,
                  "a refusal is not the server's fault");
    (void)serve::error_response(error, serve::Interface::openai);
  }
}

void expect_idle() {
  const engine::EngineStats stats = tiny().engine().stats();
  fuzz::promise(tiny().service().jobs() == 0, "no job is left behind");
  fuzz::promise(stats.running == 0 && stats.queued == 0, "no request is left behind");
  fuzz::promise(stats.free_pages + stats.cached_pages == stats.total_pages, "the pool is whole");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int kSteps = 3;
  if (size == 0) return 0;
  const auto exchange = serve::testing::posted("/", std::string(fuzz::text_of(data + 1, size - 1)));
  answer(kAnswers[static_cast<uint8_t>(data[0] - '0') % std::size(kAnswers)], exchange);
  for (int step = 0; step < kSteps && tiny().engine().step(); ++step) {
  }
  exchange->leave();
  while (tiny().engine().step()) {
  }
  expect_idle();
  if (exchange->begun()) fuzz::promise(exchange->status() != 500, "an answer is not the server's failure");
  return 0;
}
