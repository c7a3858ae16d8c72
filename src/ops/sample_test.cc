#include "ops/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "base/testing/expect_refused.h"
#include "ops/sample_weight.h"
#include "ops/testing_rows.h"
#include "ops/testing_sample.h"

namespace quire::ops {
namespace {

using namespace testing;

using Request = SampleRequest;

std::vector<Sampled> sample_all(const std::vector<Request>& requests, Exec& exec) {
  const Sampler sampler(requests[0].vocabulary(), exec);
  std::vector<Sampled> out(requests.size());
  exec.parallel(std::ssize(requests),
                [&](int64_t i, int thread) { out[i] = sampler.sample(requests[i].row(), thread); });
  return out;
}

Sampler sampler_for(const Request& request) { return Sampler(request.vocabulary(), *every_exec().back()); }
Sampled sample_one(const Request& request) { return sampler_for(request).sample(request.row(), 0); }

int32_t reference_token(const Request& request) { return ref::sample(request.row(), request.vocabulary()); }
uint64_t random_of(const Request& request) {
  return random_bits(request.params.seed, static_cast<uint64_t>(request.position));
}

// The header once more, in double: what fixed point comes so near to that no draw here tells them apart.
namespace slow {

std::vector<float> adjusted(const Request& request) {
  std::vector<float> z = request.logits;
  const SamplingParams& params = request.params;
  for (const auto& [id, bias] : params.logit_bias) z[id] += bias;
  std::map<int32_t, int> in_text, in_generated;
  for (const int32_t id : request.prompt) ++in_text[id];
  for (const int32_t id : request.generated) ++in_text[id], ++in_generated[id];
  for (const auto& [id, count] : in_text)
    z[id] = z[id] > 0 ? z[id] / params.repetition_penalty : z[id] * params.repetition_penalty;
  for (const auto& [id, count] : in_generated)
    z[id] -= params.frequency_penalty * static_cast<float>(count) + params.presence_penalty;
  for (size_t id = 0; id < z.size(); ++id)
    if (!request.allows(id)) z[id] = -kInfinity;
  return z;
}

std::vector<int32_t> by_likelihood(const std::vector<float>& z) {
  std::vector<int32_t> ids(z.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return z[a] > z[b]; });
  return ids;
}

// Not normalised; 0 for what is filtered out.
std::vector<double> weights(const Request& request) {
  const SamplingParams& params = request.params;
  const std::vector<float> z = adjusted(request);
  const std::vector<int32_t> ids = by_likelihood(z);
  std::vector<double> weight(z.size());
  for (size_t id = 0; id < z.size(); ++id)
    weight[id] = std::exp((double{z[id]} - z[ids[0]]) / double{params.temperature});
  const size_t k = params.top_k > 0 ? std::min<size_t>(static_cast<size_t>(params.top_k), z.size()) : z.size();
  for (size_t i = k; i < z.size(); ++i) weight[ids[i]] = 0;
  const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
  double reached = 0;
  for (const int32_t id : ids) {
    if (params.top_p < 1 && reached >= double{params.top_p} * total) weight[id] = 0;
    reached += weight[id];
  }
  for (double& w : weight)
    if (w < double{params.min_p}) w = 0;
  return weight;
}

int32_t drawn(const std::vector<double>& share, uint64_t random) {
  const double target = static_cast<double>(random) * 0x1p-64 * std::accumulate(share.begin(), share.end(), 0.0);
  double passed = 0;
  for (size_t id = 0; id < share.size(); ++id)
    if ((passed += share[id]) > target) return static_cast<int32_t>(id);
  return -1;
}

int32_t likeliest(const Request& request) { return by_likelihood(adjusted(request))[0]; }

}  // namespace slow

// Draws at many positions, all compared with the slow one, and some to the bit with the reference.
void expect_as_slow(Request request, const char* name) {
  SCOPED_TRACE(cat(name, ", vocabulary ", request.logits.size()));
  std::vector<Request> requests;
  for (request.position = 0; request.position < 40; ++request.position) requests.push_back(request);
  const std::vector<Sampled> out = sample_all(requests, *every_exec().back());
  const bool greedy = request.params.temperature == 0;
  const std::vector<double> share = greedy ? std::vector<double>{} : slow::weights(request);
  const int32_t likeliest = slow::likeliest(request);
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_EQ(out[i].token, greedy ? likeliest : slow::drawn(share, random_of(requests[i]))) << "position " << i;
  for (const size_t i : {0, 17}) ASSERT_EQ(out[i].token, reference_token(requests[i])) << "position " << i;
}

std::vector<float> tied_logits(size_t vocabulary, uint64_t seed) {
  std::vector<float> logits = random_floats(vocabulary, seed, 2);
  for (float& logit : logits) logit = std::round(logit * 4) / 4;
  return logits;
}

// Calls body with logits of several sizes and shapes: smooth and with ties.
template <class Body>
void with_logits(Body body) {
  for (const size_t vocabulary : {1, 5, 64, 100, 1000, 5000})
    for (const uint64_t seed : {1, 2}) {
      body(random_floats(vocabulary, seed, 3));
      body(tied_logits(vocabulary, seed));
    }
}

TEST(Sample, TemperatureAlone) {
  with_logits([](const std::vector<float>& logits) {
    for (const float temperature : {0.0f, 0.1f, 0.7f, 1.0f, 5.0f})
      expect_as_slow({.logits = logits, .params = {.temperature = temperature, .seed = 3}}, "temperature");
  });
}

TEST(Sample, TopK) {
  with_logits([](const std::vector<float>& logits) {
    for (const int32_t k : {-1, 1, 2, 7, 40, 79, 4999, 100'000})
      expect_as_slow({.logits = logits, .params = {.top_k = k, .seed = 4}}, "top-k");
  });
}

TEST(Sample, TopP) {
  with_logits([](const std::vector<float>& logits) {
    for (const float p : {1e-6f, 0.1f, 0.5f, 0.9f, 0.999f})
      expect_as_slow({.logits = logits, .params = {.temperature = 1.3f, .top_p = p, .seed = 5}}, "top-p");
  });
}

TEST(Sample, MinP) {
  with_logits([](const std::vector<float>& logits) {
    for (const float p : {1e-6f, 0.05f, 0.3f, 1.0f})
      expect_as_slow({.logits = logits, .params = {.temperature = 0.8f, .min_p = p, .seed = 6}}, "min-p");
  });
}

TEST(Sample, AllFiltersTogether) {
  with_logits([](const std::vector<float>& logits) {
    expect_as_slow({.logits = logits, .params = {.temperature = 0.9f, .top_k = 30, .top_p = 0.8f, .seed = 7}}, "k, p");
    expect_as_slow({.logits = logits, .params = {.top_k = 30, .min_p = 0.1f, .seed = 8}}, "k, min-p");
    expect_as_slow({.logits = logits, .params = {.top_k = 50, .top_p = 0.95f, .min_p = 0.02f, .seed = 9}}, "all");
  });
}

TEST(Sample, PenaltiesBiasAndMask) {
  with_logits([](const std::vector<float>& logits) {
    const auto vocabulary = static_cast<int32_t>(logits.size());
    Request request{.logits = logits, .params = {.seed = 10}};
    for (int32_t i = 0; i < 40; ++i) request.prompt.push_back(i * 7 % vocabulary);
    for (int32_t i = 0; i < 25; ++i) request.generated.push_back(i * i % vocabulary);
    const auto expect = [&](SamplingParams params, const char* name) {
      params.seed = 10;
      for (const float temperature : {0.0f, 1.0f}) {
        params.temperature = temperature;
        request.params = params;
        expect_as_slow(request, name);
      }
    };
    expect({.repetition_penalty = 1.3f}, "repetition");
    expect({.repetition_penalty = 0.5f}, "repetition below 1");
    expect({.frequency_penalty = 0.7f}, "frequency");
    expect({.presence_penalty = -1.5f}, "presence");
    expect({.logit_bias = {{vocabulary - 1, 4.0f}, {0, -100.0f}}}, "bias");
    expect({.repetition_penalty = 1.1f, .frequency_penalty = 0.2f, .presence_penalty = 0.3f}, "all penalties");
    request.mask.assign((logits.size() + 31) / 32, 0x0f0f0f0f);
    if (request.mask.size() > 3) request.mask[1] = 0, request.mask[2] = ~0u;
    expect({}, "mask");
    expect({.top_k = 5, .top_p = 0.9f, .repetition_penalty = 1.1f, .logit_bias = {{0, 2.0f}}}, "mask and all");
  });
}

TEST(Sample, DrawsHaveTheDistributionOfTheModel) {
  constexpr int kDraws = 10'000;
  constexpr double kOneInAThousand[] = {0, 10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3};  // by degrees of freedom
  for (const SamplingParams& params : {SamplingParams{.temperature = 1.2f}, SamplingParams{.top_k = 5},
                                       SamplingParams{.top_p = 0.8f}, SamplingParams{.min_p = 0.1f}}) {
    Request request{.logits = {0.5f, 1, -1, 0, 2, -0.5f, 1.5f, -2}, .params = params};
    request.params.seed = 42;
    std::vector<Request> requests;
    for (request.position = 0; request.position < kDraws; ++request.position) requests.push_back(request);
    std::vector<double> counts(8), weight = slow::weights(request);
    for (const Sampled& sampled : sample_all(requests, *every_exec().back())) ++counts[sampled.token];
    const double total = std::accumulate(weight.begin(), weight.end(), 0.0);
    double chi_square = 0;
    int possible = 0;
    for (int id = 0; id < 8; ++id) {
      const double expected = kDraws * weight[id] / total;
      if (expected == 0) {
        EXPECT_EQ(counts[id], 0) << id;
        continue;
      }
      ++possible;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    ASSERT_GT(possible, 2);
    EXPECT_LT(chi_square, kOneInAThousand[possible - 1]);
  }
}

// By an independent reading of the header, in another language. Seeds promise these tokens for ever, on every device.
TEST(Sample, SeedsKeepTheirTokens) {
  Request request;
  for (uint32_t id = 0; id < 1000; ++id)
    request.logits.push_back(static_cast<float>(id * 2654435761u >> 16) / 4096 - 8);
  const auto expect = [&](SamplingParams params, const std::vector<int32_t>& tokens) {
    params.seed = 12345678901234567;
    request.params = params;
    for (request.position = 0; request.position < std::ssize(tokens); ++request.position) {
      EXPECT_EQ(sample_one(request).token, tokens[request.position]) << request.position;
      EXPECT_EQ(reference_token(request), tokens[request.position]) << request.position;
    }
  };
  expect({}, {613, 474, 783, 409, 110, 864, 55, 542});
  expect({.temperature = 0.7f, .top_k = 40}, {631, 487, 809, 432, 131, 885, 55, 542});
  expect({.temperature = 1.3f, .top_p = 0.9f}, {605, 474, 783, 406, 110, 864, 55, 542});
  expect({.min_p = 0.05f}, {613, 474, 783, 406, 110, 864, 55, 542});
  expect({.temperature = 0.9f, .top_k = 200, .top_p = 0.8f, .min_p = 0.01f}, {618, 487, 783, 406, 118, 864, 55, 542});
}

// The token by sums of blocks, which are made in any order, as threads of a device would.
int32_t token_by_blocks(const std::vector<uint64_t>& weights, uint64_t random, size_t block, std::mt19937& order) {
  std::vector<size_t> ids(weights.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), order);
  std::vector<uint64_t> sums((weights.size() + block - 1) / block);
  for (const size_t id : ids) sums[id / block] += weights[id];
  std::vector<uint64_t> tree = sums;
  for (; tree.size() > 1; tree.resize((tree.size() + 1) / 2))
    for (size_t i = 0; i < tree.size() / 2; ++i) tree[i] += tree[tree.size() - 1 - i];
  uint64_t left = draw_threshold(random, tree[0]);
  size_t id = 0;
  for (size_t b = 0; sums[b] <= left; ++b, id += block) left -= sums[b];
  for (; weights[id] <= left; ++id) left -= weights[id];
  return static_cast<int32_t>(id);
}

TEST(Sample, NoOrderOfSummationChangesTheToken) {
  std::mt19937 order(1);
  for (const float spread : {0.0f, 0.5f, 5.0f}) {
    Request request{.logits = random_floats(3000, 8, spread), .params = {.temperature = 0.8f, .seed = 5}};
    const WeightScale scale = weight_scale(*std::max_element(request.logits.begin(), request.logits.end()), 0.8f);
    std::vector<uint64_t> weights;
    for (const float logit : request.logits) weights.push_back(fixed_weight(logit, scale));
    for (request.position = 0; request.position < 5; ++request.position)
      for (const size_t block : {1, 32, 64, 1000, 3000})
        ASSERT_EQ(token_by_blocks(weights, random_of(request), block, order), sample_one(request).token) << block;
  }
}

// Everything of a request at random from what is hard.
Request hostile_request(std::mt19937& random) {
  const auto one_of = [&](const auto& values) { return values[random() % std::size(values)]; };
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  const float palette[] = {0.0f, -0.0f, 1.0f, 1.0000001f, -1.0f, -40.0f, -kInfinity, kMost, -kMost, kLeast, -1e30f};
  const float temperatures[] = {kLeast, 1e-30f, 0.01f, 1.0f, 1.0f, 1.7f, 100.0f, kMost};
  const float top_ps[] = {1.0f, kLeast, 0x1p-41f, 0.25f, 0.5f, 0.75f, 0.9f, 0x0.ffffffp0f};
  const float min_ps[] = {0.0f, 0.0f, kLeast, 0x1p-41f, 0.25f, 0.5f, 1.0f};
  const int32_t top_ks[] = {0, 0, 1, 2, 63, 64, 65, 200};
  const size_t vocabularies[] = {1, 2, 63, 64, 65, 300};
  Request request{.logits =
                      random_floats(one_of(vocabularies), random(), one_of(std::array{0.0f, 1e-6f, 1.0f, 30.0f}))};
  const size_t drawn_from = 1 + random() % std::size(palette);  // few values: many ties
  if (random() % 2)
    for (float& logit : request.logits) logit = palette[random() % drawn_from];
  request.logits[random() % request.logits.size()] = one_of(std::array{0.0f, 1.0f, kMost});
  request.params = {.temperature = one_of(temperatures),
                    .top_k = one_of(top_ks),
                    .top_p = one_of(top_ps),
                    .min_p = one_of(min_ps),
                    .seed = random()};
  request.position = random();
  return request;
}

TEST(Sample, AgreesWithTheReferenceOnHostileInput) {
  std::mt19937 random(7);
  for (int i = 0; i < 3000; ++i) {
    const Request request = hostile_request(random);
    const auto& exec = *every_exec()[i % every_exec().size()];
    const Sampler sampler(request.vocabulary(), exec);
    ASSERT_EQ(sampler.sample(request.row(), 0).token, reference_token(request))
        << i << ": " << request.logits.size() << " logits, temperature " << request.params.temperature << ", top-k "
        << request.params.top_k << ", top-p " << request.params.top_p << ", min-p " << request.params.min_p;
  }
}

TEST(Sample, AHugeVocabularyOfEqualTokens) {
  constexpr uint64_t kTokens = 1 << 20;
  Request request{.logits = std::vector<float>(kTokens, -3.5f)};
  for (const auto& [params, tokens] : {std::pair{SamplingParams{.seed = 2}, kTokens},
                                       std::pair{SamplingParams{.top_p = 0.5f, .seed = 2}, kTokens / 2}}) {
    request.params = params;
    for (request.position = 0; request.position < 3; ++request.position)
      EXPECT_EQ(sample_one(request).token, draw_threshold(random_of(request), tokens));
  }
}

TEST(Sample, OneTokenAmongManyThatAreForbidden) {
  for (const size_t at : {0, 63, 64, 999}) {
    Request request{.logits = std::vector<float>(1000, -kInfinity), .params = {.top_p = 0.5f, .min_p = 0.1f}};
    request.logits[at] = -1e38f;
    EXPECT_EQ(sample_one(request).token, at);
    request.params = {.temperature = 2};
    EXPECT_EQ(sample_one(request).token, at);
  }
}

// The i-th of many that differ in everything.
Request varied_request(int32_t i) {
  Request request{.logits = random_floats(777, static_cast<uint64_t>(i), 3)};
  request.params.temperature = 0.5f + 0.05f * static_cast<float>(i);
  request.params.top_k = i % 3 ? i : 0;
  request.params.top_p = i % 4 ? 0.9f : 1.0f;
  request.params.repetition_penalty = i % 5 ? 1.0f : 1.2f;
  request.params.seed = static_cast<uint64_t>(i % 7);
  request.prompt = {1, 2, 3, i};
  request.generated = {i, i, 5};
  request.position = i * 3;
  request.top_logprobs = i % 6 - 1;
  request.logprob_ids = {i, 700 - i};
  return request;
}

TEST(Sample, ARowDependsOnItselfAlone) {
  std::vector<Request> requests;
  for (int i = 0; i < 40; ++i) requests.push_back(varied_request(i));
  std::vector<Sampled> alone;
  for (const Request& request : requests) alone.push_back(sample_one(request));
  with_every_exec([&](Exec& exec) {
    for (const bool backwards : {false, true}) {
      std::vector<Request> ordered = requests;
      if (backwards) std::reverse(ordered.begin(), ordered.end());
      const std::vector<Sampled> out = sample_all(ordered, exec);
      for (size_t i = 0; i < out.size(); ++i) {
        const Sampled& expected = alone[backwards ? out.size() - 1 - i : i];
        ASSERT_EQ(out[i].token, expected.token);
        ASSERT_EQ(out[i].logprob, expected.logprob);
        ASSERT_EQ(out[i].top, expected.top);
        ASSERT_EQ(out[i].wanted, expected.wanted);
      }
    }
  });
}

TEST(Sample, SeedAndPositionBothCount) {
  Request request{.logits = std::vector<float>(1000, 0.0f), .params = {.seed = 1}, .position = 1};
  const int32_t first = sample_one(request).token;
  EXPECT_EQ(sample_one(request).token, first);
  request.position = 2;
  const int32_t second = sample_one(request).token;
  request.position = 1;
  request.params.seed = 2;
  const int32_t third = sample_one(request).token;
  EXPECT_NE(first, second);
  EXPECT_NE(first, third);
}

TEST(Sample, GreedyTakesTheLowerIdOfEqualOnes) {
  Request request{.logits = std::vector<float>(300, 1.0f), .params = {.temperature = 0}};
  request.logits[70] = request.logits[71] = request.logits[299] = 2;
  EXPECT_EQ(sample_one(request).token, 70);
  request.logits[70] = request.logits[71] = 1;
  EXPECT_EQ(sample_one(request).token, 299);
  request.logits[299] = -0.0f;
  EXPECT_EQ(sample_one(request).token, 0);
}

// Logits with many ties, some at -inf.
std::vector<float> ragged_logits(size_t vocabulary) {
  std::vector<float> logits = random_floats(vocabulary, vocabulary);
  for (float& logit : logits) logit = logit < -1.5f ? -kInfinity : std::round(logit * 4) / 4;
  return logits;
}

TEST(Sample, GreedyTakesTheFirstInTheOrderOfLikelihood) {
  for (const size_t vocabulary : {3, 64, 100, 1000}) {
    const Request request{.logits = ragged_logits(vocabulary), .params = {.temperature = 0}};
    EXPECT_EQ(sample_one(request).token, slow::by_likelihood(request.logits)[0]);
  }
}

TEST(Sample, TopLogprobsAreExactlySoManyAndNoneAtMinusInfinity) {
  for (const size_t vocabulary : {3, 64, 100, 1000}) {
    Request request{.logits = ragged_logits(vocabulary), .params = {.temperature = 0}};
    std::vector<int32_t> expected = slow::by_likelihood(request.logits);
    std::erase_if(expected, [&](int32_t id) { return std::isinf(request.logits[id]); });
    for (const size_t count : {0, 1, 2, 3, 10, 16, 17, 64, 100, 500, 1000}) {
      if (count > vocabulary) break;
      request.top_logprobs = static_cast<int32_t>(count);
      std::vector<int32_t> ids;
      for (const auto& [id, logprob] : sample_one(request).top) ids.push_back(id);
      ASSERT_EQ(ids, std::vector(expected.begin(), expected.begin() + std::min(count, expected.size())));
    }
  }
}

TEST(Sample, SurvivorsShareInTheOrderOfIds) {
  Request request{.logits = ragged_logits(1000), .params = {.temperature = 1e30f, .top_k = 100}};  // all weigh the same
  std::vector<int32_t> ids = slow::by_likelihood(request.logits);
  ids.resize(100);
  std::sort(ids.begin(), ids.end());
  for (request.position = 0; request.position < 300; ++request.position)
    ASSERT_EQ(sample_one(request).token, ids[draw_threshold(random_of(request), 100)]);
}

TEST(Sample, ExtremeParameters) {
  Request request{.logits = random_floats(500, 3, 3)};
  request.logits[7] = -kInfinity;
  const auto top =
      static_cast<int32_t>(std::max_element(request.logits.begin(), request.logits.end()) - request.logits.begin());
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 1e-45f}, SamplingParams{.temperature = 1e-30f, .top_p = 0.9f},
        SamplingParams{.min_p = 1}, SamplingParams{.top_k = 1}, SamplingParams{.top_p = 1e-45f}}) {
    request.params = params;
    EXPECT_EQ(sample_one(request).token, top);
  }
  request.params = {.temperature = std::numeric_limits<float>::max(), .top_p = 0.99f, .min_p = 0.5f};
  for (request.position = 0; request.position < 50; ++request.position) EXPECT_NE(sample_one(request).token, 7);
  request.params = {.temperature = 0, .repetition_penalty = 1e-45f};  // would be infinite
  request.prompt = {top};
  EXPECT_EQ(sample_one(request).token, top);
}

TEST(Sample, MaskedTokensAreNeverDrawn) {
  Request request{.logits = random_floats(100, 3), .params = {.temperature = 100}};
  request.mask = {0, 1u << 5, 0, 1u << 2 | 0xfffffff0};  // 37 and 98, and bits behind the vocabulary
  std::map<int32_t, int> drawn;
  for (request.position = 0; request.position < 100; ++request.position) ++drawn[sample_one(request).token];
  EXPECT_EQ(drawn.size(), 2u);
  EXPECT_GT(drawn[37], 0);
  EXPECT_GT(drawn[98], 0);
}

TEST(Sample, LogprobsAreOfTheUnchangedLogits) {
  Request request{.logits = tied_logits(1000, 3), .params = {.temperature = 0.3f, .top_k = 3, .seed = 1}};
  request.params.logit_bias = {{17, 50.0f}};
  const std::vector<float>& z = request.logits;
  double sum = 0;
  for (const float logit : z) sum += std::exp(double{logit});
  const std::vector<int32_t> ids = slow::by_likelihood(z);
  for (const int32_t top : {0, 1, 5, 20, 1000}) {
    request.top_logprobs = top;
    const Sampled sampled = sample_one(request);
    EXPECT_EQ(sampled.token, 17);
    EXPECT_NEAR(sampled.logprob, z[17] - std::log(sum), 1e-5);
    ASSERT_EQ(std::ssize(sampled.top), top);
    for (int32_t i = 0; i < top; ++i) {
      ASSERT_EQ(sampled.top[i].first, ids[i]);
      ASSERT_NEAR(sampled.top[i].second, z[ids[i]] - std::log(sum), 1e-5);
    }
  }
  request.top_logprobs = -1;
  request.logprob_ids = {1, 2};
  EXPECT_EQ(sample_one(request).logprob, 0);
  EXPECT_TRUE(sample_one(request).top.empty());
  EXPECT_TRUE(sample_one(request).wanted.empty());
}

TEST(Sample, LogprobsOfNamedTokens) {
  Request request{.logits = tied_logits(1000, 3), .params = {.temperature = 0}, .top_logprobs = 1000};
  request.logprob_ids = {999, 0, 17, 0};
  const Sampled sampled = sample_one(request);
  std::map<int32_t, float> all(sampled.top.begin(), sampled.top.end());
  std::vector<std::pair<int32_t, float>> expected;
  for (const int32_t id : request.logprob_ids) expected.emplace_back(id, all[id]);
  EXPECT_EQ(sampled.wanted, expected);
}

TEST(Sample, ScoresATokenThatIsNotDrawn) {
  Request request{.logits = tied_logits(1000, 3), .params = {.temperature = 0}, .top_logprobs = 1000};
  request.logprob_ids = {7};
  const Sampled drawn = sample_one(request);
  const std::map<int32_t, float> all(drawn.top.begin(), drawn.top.end());
  SampleRow row = request.row();
  row.params = nullptr;
  for (const int32_t token : {0, 500, 999}) {
    const Sampled scored = sampler_for(request).score(row, token, 0);
    EXPECT_EQ(scored.token, token);
    EXPECT_EQ(scored.logprob, all.at(token));
    EXPECT_EQ(scored.top, drawn.top);
    EXPECT_EQ(scored.wanted, drawn.wanted);
  }
  const auto scoring = [&](int32_t token) { return [&, token] { sampler_for(request).score(row, token, 0); }; };
  expect_refused(scoring(1000), "token 1000 is outside the vocabulary of 1000");
  expect_refused(scoring(-1), "token -1");
  request.logits[3] = std::nanf("");
  expect_refused(scoring(5), "the logits hold NaN");
  row.top_logprobs = -1;
  expect_refused(scoring(5), "without logprobs");
}

TEST(Sample, LogitsAreNotChanged) {
  Request request{.logits = random_floats(100, 1), .params = {.repetition_penalty = 2, .logit_bias = {{3, 9.0f}}}};
  request.prompt = {1, 2, 3};
  request.mask.assign(4, 0xff);
  const std::vector<float> before = request.logits;
  sample_one(request);
  EXPECT_EQ(request.logits, before);
}

TEST(Sample, RefusesBrokenLogits) {
  for (const float temperature : {0.0f, 1.0f}) {
    Request request{.logits = random_floats(100, 1), .params = {.temperature = temperature}};
    request.logits[99] = std::nanf("");
    expect_refused([&] { sample_one(request); }, "the logits hold NaN");
    request.mask.assign(4, 0xff);  // also where the mask would hide it
    expect_refused([&] { sample_one(request); }, "NaN");
    request.logits[99] = kInfinity;
    expect_refused([&] { sample_one(request); }, "infinity");
    request.logits.assign(100, -kInfinity);
    expect_refused([&] { sample_one(request); }, "all logits are -inf");
    request.logits.assign(100, 1.0f);
    request.mask.assign(4, 0);
    expect_refused([&] { sample_one(request); }, "leave no token");
  }
}

TEST(Sample, ARefusalLeavesTheSamplerUsable) {
  const Exec exec(ExecOptions{.threads = 1});
  const Sampler sampler(50, exec);
  Request request{.logits = random_floats(50, 1), .params = {.repetition_penalty = 1.5f}};
  request.generated = {3, 50};
  expect_refused([&] { sampler.sample(request.row(), 0); }, "the generated text holds token 50");
  request.generated = {3, 3, 4};
  EXPECT_EQ(sampler.sample(request.row(), 0).token, reference_token(request));
}

TEST(Sample, RefusesAtTheDoor) {
  const Exec exec(ExecOptions{.threads = 2});
  expect_refused([&] { Sampler(0, exec); }, "vocabulary of 0");
  expect_refused([&] { Sampler(kMostWeights + 1, exec); }, "vocabulary of 8388609");
  const Sampler sampler(8, exec);
  const Request good{.logits = std::vector<float>(8)};
  const auto refused = [&](auto change, const char* part) {
    SampleRow row = good.row();
    change(row);
    expect_refused([&] { sampler.sample(row, 1); }, part);
  };
  refused([](SampleRow& row) { row.logits = nullptr; }, "logits");
  refused([](SampleRow& row) { row.params = nullptr; }, "parameters");
  refused([](SampleRow& row) { row.position = -1; }, "position -1");
  refused([](SampleRow& row) { row.top_logprobs = 9; }, "got 9");
  refused([](SampleRow& row) { row.top_logprobs = -2; }, "got -2");
  const SamplingParams cold{.temperature = -1};
  refused([&](SampleRow& row) { row.params = &cold; }, "temperature");
  const std::vector<int32_t> outside = {3, 8};
  refused([&](SampleRow& row) { row.logprob_ids = outside; }, "logprob_ids name token 8");
  expect_refused([&] { sampler.sample(good.row(), 2); }, "thread 2 of a sampler for 2");
}

TEST(CheckSampling, NamesTheParameter) {
  const float nan = std::nanf("");
  const auto refused = [](const SamplingParams& params, const char* part) {
    expect_refused([&] { check_sampling(params, 10); }, part);
  };
  check_sampling({}, 10);
  for (const float bad : {-0.1f, nan, kInfinity}) refused({.temperature = bad}, "temperature must");
  refused({.top_k = -2}, "top_k must");
  for (const float bad : {0.0f, -1.0f, 1.1f, nan}) refused({.top_p = bad}, "top_p must");
  for (const float bad : {-0.1f, 1.1f, nan}) refused({.min_p = bad}, "min_p must");
  for (const float bad : {0.0f, -1.0f, nan, kInfinity}) refused({.repetition_penalty = bad}, "repetition_penalty must");
  for (const float bad : {-2.1f, 2.1f, nan}) refused({.frequency_penalty = bad}, "frequency_penalty must");
  for (const float bad : {-2.1f, 2.1f, nan}) refused({.presence_penalty = bad}, "presence_penalty must");
  for (const int32_t token : {-1, 10}) refused({.logit_bias = {{token, 0.0f}}}, "logit_bias names token");
  for (const float bad : {-101.0f, 101.0f, nan}) refused({.logit_bias = {{1, bad}}}, "logit_bias must");
}

}  // namespace
}  // namespace quire::ops
