// JSON in answers: pieces of those that are put together as text, because they grow and are sent many times, and whole
// ones.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

#include "http/exchange.h"

namespace quire::serve {

std::string json_string(std::string_view text);                 // with its quotes
void append_escaped(std::string& json, std::string_view text);  // what stands between the quotes; whole characters
std::string json_number(double value);                          // null for what JSON has no number for
std::string json_number(float value);                           // as few digits as give the same float again
std::string dumped(const nlohmann::ordered_json& value);        // on one line; never throws for what is no UTF-8
void respond_json(http::Exchange& exchange, const nlohmann::ordered_json& body);

}  // namespace quire::serve
