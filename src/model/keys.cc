#include "model/keys.h"

#include <cmath>

#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/json_fields.h"

namespace quire::model {

using nlohmann::json;

namespace {

bool is_zero(const GgufFile::Value& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_arithmetic_v<std::decay_t<decltype(held)>>) return held == 0;
        return false;
      },
      value);
}

}  // namespace

std::string Keys::shown(Key key) const {
  return cat(name(key), " = ", file_ ? to_string(*file_->find(name(key))) : object_->at(key.folder).dump());
}

bool Keys::has(Key key) const {
  if (file_) return key.gguf && file_->has(name(key));
  return key.folder && !optional_field(*object_, key.folder).is_null();
}

int32_t Keys::count(Key key, int32_t least, int32_t most) const {
  if (!file_) return errors_about(path_, [&] { return count_field(*object_, key.folder, least, most); });
  const int64_t value = file_->integer(name(key));
  check(value >= least && value <= most, path_, ": ", name(key), " = ", value, " is not between ", least, " and ",
        most);
  return static_cast<int32_t>(value);
}

double Keys::number(Key key) const {
  if (file_) return file_->number(name(key));
  return errors_about(path_, [&] { return number_field(*object_, key.folder); });
}

double Keys::positive(Key key) const {
  const double value = number(key);
  check(std::isfinite(value) && value > 0, path_, ": ", shown(key), " is not a positive number");
  return value;
}

bool Keys::flag_or(Key key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (file_) return file_->flag(name(key), otherwise);
  return errors_about(path_, [&] { return flag_field(*object_, key.folder, otherwise); });
}

std::string Keys::text(Key key) const {
  if (file_) return file_->text(name(key));
  return errors_about(path_, [&] { return text_field(*object_, key.folder); });
}

int32_t Keys::count_or(Key key, int32_t otherwise, int32_t least, int32_t most) const {
  return has(key) ? count(key, least, most) : otherwise;
}
double Keys::number_or(Key key, double otherwise) const { return has(key) ? number(key) : otherwise; }
double Keys::positive_or(Key key, double otherwise) const { return has(key) ? positive(key) : otherwise; }
std::string Keys::text_or(Key key, std::string_view otherwise) const {
  return has(key) ? text(key) : std::string(otherwise);
}

bool Keys::is_null(const char* key) const { return object_->contains(key) && object_->at(key).is_null(); }

std::vector<json> Keys::by_layer(const char* key, int32_t layers) const {
  return errors_about(path_, [&] {
    const json& list = list_field(*object_, key);
    check(std::ssize(list) >= layers, key, " has ", list.size(), " elements for ", layers, " layers");
    return std::vector<json>{list.begin(), list.begin() + layers};
  });
}

Keys Keys::object(const char* key) const {
  return errors_about(path_, [&] {
    const json& inner = field(*object_, key);
    check(inner.is_object(), key, " is not an object but ", inner.type_name());
    for (const auto& [name, value] : inner.items())
      check(!value.is_object(), key, ": ", in_quotes(name),
            " is an object: one for each kind of layer is not something that quire computes");
    return Keys(inner, cat(path_, ": ", key));
  });
}

void Keys::refuse(std::string_view key) const {
  const GgufFile::Value* value = file_->find(cat(prefix_, key));
  const bool off = !value || is_zero(*value);
  check(off, path_, ": ", prefix_, key, " = ", value ? to_string(*value) : "", " is not something that quire computes");
}

}  // namespace quire::model
