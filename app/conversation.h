// The messages of one chat, and the tokens that the model has already seen of them.
//
// Every prompt is the whole conversation; what the engine still has of it is not computed again. So that this holds to
// the last token, a prompt repeats the very tokens of the one before and of its answer where the template repeats their
// text, instead of encoding that text anew, which may cut it differently.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "completion.h"
#include "session.h"

namespace quire {

class Conversation {
 public:
  Conversation(const Session& session, std::string system);  // "": no system message

  const std::string& system() const { return system_; }
  void set_system(std::string text);
  void reset();  // forgets all turns, keeps the system message

  struct Prompt {
    std::vector<int32_t> tokens;
    int dropped;  // oldest turns that had to be forgotten
  };
  // Adds a message and gives the prompt for its answer, which leaves `for_answer` tokens of the context. Throws
  // CheckError, and is as before, when the message alone is longer.
  Prompt ask(const std::string& message, int32_t context, int32_t for_answer);
  void answered(const Completion& completion);  // to the last prompt

  nlohmann::ordered_json messages() const;

 private:
  std::vector<int32_t> encode();
  void add(const char* role, const std::string& text);

  const Session& session_;
  std::string system_;
  nlohmann::ordered_json turns_ = nlohmann::ordered_json::array();  // user, assistant, user, ...
  std::string seen_text_;  // the last prompt and, where it ended by itself, its answer
  std::vector<int32_t> seen_tokens_;
};

}  // namespace quire
