#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/in_quotes.h"
#include "serve/api_error.h"
#include "serve/json_text.h"
#include "serve/openai.h"

namespace quire::serve {
namespace {

using nlohmann::ordered_json;

int64_t first_asked() {
  static const int64_t kSeconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  return kSeconds;
}

ordered_json described(const Service& service) {
  return {{"id", service.options().served_model_name},
          {"object", "model"},
          {"created", first_asked()},
          {"owned_by", "quire"},
          {"root", service.options().model_path},
          {"max_model_len", service.engine_options().context}};
}

}  // namespace

void models(std::shared_ptr<http::Exchange> exchange, Service& service) {
  constexpr std::string_view kList = "/v1/models", kOne = "/v1/models/";
  const std::string_view path = exchange->request().path;
  const std::string_view name = path.starts_with(kOne) ? path.substr(kOne.size()) : std::string_view();
  if (path == kList || name.empty())
    return respond_json(*exchange, {{"object", "list"}, {"data", {described(service)}}});
  if (name != service.options().served_model_name)
    throw ApiError(404, cat("the model ", in_quotes(name), " is not served here"), "model", "model_not_found");
  respond_json(*exchange, described(service));
}

}  // namespace quire::serve
