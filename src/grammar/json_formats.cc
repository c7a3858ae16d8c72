#include "grammar/json_formats.h"

namespace quire::grammar {
namespace {

#define QUIRE_DATE \
  "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define QUIRE_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define QUIRE_BYTE "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define QUIRE_LABEL "[A-Za-z0-9]+(-[A-Za-z0-9]+)*"
#define QUIRE_HOST QUIRE_LABEL "(\\." QUIRE_LABEL ")*"

struct Format {
  std::string_view name;
  const char* regex;
};

constexpr Format kFormats[] = {
    {"date", QUIRE_DATE},
    {"time", QUIRE_TIME},
    {"date-time", QUIRE_DATE "T" QUIRE_TIME},
    {"duration",
     "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|[0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|"
     "[0-9]{1,4}M([0-9]{1,4}D)?|T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|"
     "[0-9]{1,4}S))"},
    {"email", "[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*@(" QUIRE_LABEL "\\.)+[A-Za-z]{2,12}"},
    {"hostname", QUIRE_HOST},
    {"ipv4", QUIRE_BYTE "(\\." QUIRE_BYTE "){3}"},
    {"ipv6",
     "([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}|::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,5})?|"
     "[0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,2}::([0-9a-fA-F]{1,4}(:[0-9a-fA-F]{1,4}){0,2})?"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"uri", "[a-z][a-z0-9+.-]{0,15}:(//" QUIRE_HOST "(:[0-9]{1,4})?)?(/[A-Za-z0-9._~!$&'()*+,;=:@-]*)*"
            "(\\?[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?(#[A-Za-z0-9._~!$&'()*+,;=:@/-]*)?"},
};

}  // namespace

const char* format_regex(std::string_view format) {
  for (const Format& known : kFormats) {
    if (known.name == format) return known.regex;
  }
  return nullptr;
}

}  // namespace quire::grammar
