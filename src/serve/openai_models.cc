#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

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

ordered_json described(const std::string& name, const Service& service) {
  return {{"id", name},
          {"object", "model"},
          {"created", first_asked()},
          {"owned_by", "quire"},
          {"root", service.options().model_path},
          {"max_model_len", service.engine_options().context}};
}

std::vector<std::string> names_of_model(const Service& service) {
  std::vector<std::string> names = service.options().aliases;
  names.insert(names.begin(), service.options().served_model_name);
  return names;
}

ordered_json list_of(const std::vector<std::string>& names, const Service& service) {
  ordered_json list = ordered_json::array();
  for (const std::string& name : names) list.push_back(described(name, service));
  return list;
}

}  // namespace

void models(std::shared_ptr<http::Exchange> exchange, Service& service) {
  constexpr std::string_view kList = "/v1/models", kOne = "/v1/models/";
  const std::string_view path = exchange->request().path;
  const std::string_view name = path.starts_with(kOne) ? path.substr(kOne.size()) : std::string_view();
  const std::vector<std::string> names = names_of_model(service);
  if (path == kList || name.empty())
    return respond_json(*exchange, {{"object", "list"}, {"data", list_of(names, service)}});
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ApiError(404, cat("the model ", in_quotes(name), " is not served here"), "model", "model_not_found");
  respond_json(*exchange, described(std::string(name), service));
}

}  // namespace quire::serve
