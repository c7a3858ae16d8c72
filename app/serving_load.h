// The load of `quire bench serving`: every request as the bytes that go over the wire, a pure function of the seed and
// the request's number. The same options give any server the same load.
//
// A prompt's length is drawn between the two given. It begins with the shared prefix, as much of it as fits before at
// least one token of its own.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace quire::bench {

enum class Endpoint { completions, chat, generate };
Endpoint endpoint_from(const std::string& name);  // throws CheckError for other names than these three

struct LoadShape {
  Endpoint endpoint = Endpoint::completions;
  int32_t shared_tokens = 0;
  int32_t least_prompt = 128, most_prompt = 128;
  int32_t output_tokens = 128;
  uint64_t seed = 1;
  int32_t vocabulary = 49152;  // prompts are ids below this
  bool words = false;          // prompts are text of about as many words instead; in a chat always
  bool ignore_eos = false;
  std::string model = {};  // "": the request does not say
  std::string more = {};   // a JSON object that is merged into each body
};

// "concurrency=16/shared=800/prompt=200-1500/output=128", without the concurrency
std::string name_of(const LoadShape& shape);

class Load {
 public:
  // host: for the Host header; api_key: "" for none
  Load(LoadShape shape, std::string host, std::string api_key);

  std::vector<int32_t> prompt(int64_t request) const;
  std::string body(int64_t request) const;
  std::string bytes(int64_t request) const;  // head and body
  std::string health_check() const;          // what a connection says once before it idles

 private:
  std::string head(const std::string& method, const std::string& path) const;

  LoadShape shape_;
  std::string host_, api_key_;
  std::vector<int32_t> shared_;
};

}  // namespace quire::bench
