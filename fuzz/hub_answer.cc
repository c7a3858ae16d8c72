// A hub's answer from anywhere, whatever pieces its bytes come in: its head, its body, the list of files that it may
// be, and what quire would fetch of that.
#include <algorithm>
#include <span>
#include <string>
#include <string_view>

#include "fuzz.h"
#include "hub/answer_reader.h"
#include "hub/choose_file.h"
#include "hub/model_name.h"
#include "hub/remote.h"
#include "hub/url.h"

using namespace quire;

namespace {

struct Outcome {
  int status = 0;
  bool whole = false;
  std::string body = {};
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome outcome_of(std::string_view bytes, size_t piece) {
  hub::AnswerReader answer([bytes, piece](std::span<char> out) mutable {
    const size_t count = std::min({piece, out.size(), bytes.size()});
    std::copy_n(bytes.begin(), count, out.begin());
    bytes.remove_prefix(count);
    return count;
  });
  Outcome outcome;
  fuzz::attempt([&] {
    const hub::ResponseHead head = answer.read_head();
    outcome.status = head.status;
    answer.read_body(head, [&](std::string_view part) { outcome.body += part; });
    outcome.whole = true;
    const hub::Url here = hub::parse_url("https://hub.example/a/b");
    const std::string next = to_string(hub::redirected(here, head.header("location").value_or("")));
    fuzz::promise(next.find_first_of("\r\n ") == next.npos, "an address stays in its line");
  });
  return outcome;
}

void choose_from(std::string_view listing) {
  const hub::Listing list = hub::parse_listing(listing);
  fuzz::promise(hub::is_commit(list.commit), "a commit is one");
  for (const std::string& file : list.files) fuzz::promise(hub::is_plain_path(file), "paths stay below their folder");
  const hub::ModelFiles chosen = hub::choose_files(list.files, "");
  for (const std::string& file : chosen.files)
    fuzz::promise(std::find(list.files.begin(), list.files.end(), file) != list.files.end(), "what is chosen is there");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes = fuzz::text_of(data, size);
  const Outcome whole = outcome_of(bytes, bytes.size());
  fuzz::promise(whole == outcome_of(bytes, 1), "single bytes are read like all at once");
  fuzz::promise(whole == outcome_of(bytes, 5), "pieces are read like all at once");
  fuzz::attempt([&] { choose_from(whole.body); });
  return 0;
}
