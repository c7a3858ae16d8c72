#include "text/jinja_filters.h"

namespace quire::text::jinja {

FilterFunction* find_filter(std::string_view name) {
  for (const auto& filters : {text_filters(), number_filters(), list_filters(), order_filters(), choice_filters()})
    for (const FilterEntry& entry : filters)
      if (entry.name == name) return entry.function;
  return nullptr;
}

}  // namespace quire::text::jinja
