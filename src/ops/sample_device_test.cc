#include "ops/sample_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "base/cuda.h"
#include "base/testing/expect_refused.h"
#include "ops/sample_weight.h"
#include "ops/testing_rows.h"
#include "ops/testing_sample.h"

namespace quire::ops {
namespace {

using namespace testing;

// A row's result, or why there is none.
struct DeviceAnswer {
  Sampled sampled = {};
  std::string error = {};
};

template <class Compute>
DeviceAnswer answer_of(Compute compute) {
  try {
    return {.sampled = compute()};
  } catch (const CheckError& refused) {
    return {.error = refused.what()};
  }
}

DeviceAnswer on_cpu(const SampleRequest& request) {
  static const Exec exec(ExecOptions{.threads = 1});
  const Sampler sampler(request.vocabulary(), exec);
  return answer_of([&] {
    return request.scored >= 0 ? sampler.score(request.row(), request.scored, 0) : sampler.sample(request.row(), 0);
  });
}

// One unit in the last place at most.
void expect_same_logprob(float a, float b) {
  EXPECT_TRUE(a == b || std::nextafterf(a, b) == b) << a << " and " << b << " differ by " << a - b;
}
void expect_same_logprobs(const std::vector<std::pair<int32_t, float>>& a,
                          const std::vector<std::pair<int32_t, float>>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].first, b[i].first) << i;
    expect_same_logprob(a[i].second, b[i].second);
  }
}

void expect_same_answer(const DeviceAnswer& gpu, const DeviceAnswer& cpu) {
  ASSERT_EQ(gpu.error, cpu.error);
  ASSERT_EQ(gpu.sampled.token, cpu.sampled.token);
  expect_same_logprob(gpu.sampled.logprob, cpu.sampled.logprob);
  expect_same_logprobs(gpu.sampled.top, cpu.sampled.top);
  expect_same_logprobs(gpu.sampled.wanted, cpu.sampled.wanted);
}

std::string description(const SampleRequest& request) {
  const SamplingParams& p = request.params;
  return cat("vocabulary ", request.logits.size(), ", temperature ", p.temperature, ", top-k ", p.top_k, ", top-p ",
             p.top_p, ", min-p ", p.min_p, ", biases ", p.logit_bias.size(), ", penalises ", request.penalises(),
             ", masked ", !request.mask.empty(), ", logprobs ", request.top_logprobs, ", scored ", request.scored);
}

class GpuSampler {  // of one vocabulary
 public:
  // padding: elements between rows of logits.
  GpuSampler(int32_t vocabulary, int32_t rows, int32_t padding = 0)
      : exec_({.threads = 1, .stream = &stream_}),
        vocabulary_(vocabulary),
        stride_(vocabulary + padding),
        sampler_({.vocabulary = vocabulary, .rows = rows, .request_rows = rows, .penalty_slots = rows, .text = 4096},
                 exec_),
        logits_(static_cast<size_t>(rows) * static_cast<size_t>(stride_) * sizeof(float), Place::device),
        number_(sizeof(uint32_t), Place::pinned),
        rows_(rows) {
    number() = 0;
  }

  Exec& exec() { return exec_; }
  DeviceSampler& sampler() { return sampler_; }
  uint32_t& number() { return *reinterpret_cast<uint32_t*>(number_.data()); }
  Rows<const float> logits(int64_t rows) const {
    return {reinterpret_cast<const float*>(logits_.data()), rows, vocabulary_, stride_};
  }
  void launch(int64_t captured, const int32_t* live = nullptr) { sampler_.launch(logits(captured), &number(), live); }

  // Row i is request row i, and its penalties are in slot i.
  void begin(const std::vector<SampleRequest>& requests, bool recount = true) {
    std::vector<float> all(requests.size() * static_cast<size_t>(stride_), std::nanf(""));
    for (size_t i = 0; i < requests.size(); ++i)
      std::copy(requests[i].logits.begin(), requests[i].logits.end(),
                all.begin() + static_cast<std::ptrdiff_t>(i) * stride_);
    stream_.copy(logits_.data(), reinterpret_cast<const std::byte*>(all.data()), all.size() * sizeof(float));
    exec_.wait();
    sampler_.begin(number() + 1);
    for (size_t i = 0; i < requests.size(); ++i) {
      const SampleRequest& request = requests[i];
      const auto slot = static_cast<int32_t>(i);
      if (request.scored >= 0) {
        sampler_.score(request.row(), request.scored);
        continue;
      }
      if (recount && request.penalises()) sampler_.recount(slot, request.prompt, request.generated);
      sampler_.draw(request.row(), {slot}, slot);
    }
    ++number();
  }
  std::vector<DeviceAnswer> answers(size_t count) {
    sampler_.wait(number());
    std::vector<DeviceAnswer> out;
    for (size_t i = 0; i < count; ++i)
      out.push_back(answer_of([&] { return sampler_.result(number(), static_cast<int32_t>(i)); }));
    return out;
  }
  std::vector<DeviceAnswer> run(const std::vector<SampleRequest>& requests) {
    begin(requests);
    launch(rows_);
    return answers(requests.size());
  }

  template <class T>
  std::vector<T> read(const T* from, size_t count) {
    std::vector<T> out(count);
    stream_.copy(reinterpret_cast<std::byte*>(out.data()), reinterpret_cast<const std::byte*>(from), count * sizeof(T));
    exec_.wait();
    return out;
  }

 private:
  quire::cuda::Stream stream_;
  Exec exec_;
  int32_t vocabulary_;
  int64_t stride_;
  DeviceSampler sampler_;
  Buffer logits_, number_;
  int32_t rows_;
};

class DeviceSample : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (quire::cuda::devices() == 0) GTEST_SKIP() << "this machine has no GPU, or quire was built without CUDA";
  }
};
INSTANTIATE_TEST_SUITE_P(Machines, DeviceSample, ::testing::Values("cuda"),
                         [](const auto& test) { return test.param; });

void expect_as_cpu(const std::vector<SampleRequest>& requests, int32_t padding = 0) {
  GpuSampler gpu(requests[0].vocabulary(), static_cast<int32_t>(requests.size()), padding);
  const std::vector<DeviceAnswer> answers = gpu.run(requests);
  const std::vector<int32_t> drawn = gpu.read(gpu.sampler().tokens_of_step(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(cat("row ", i, ": ", description(requests[i])));
    expect_same_answer(answers[i], on_cpu(requests[i]));
    EXPECT_EQ(drawn[i], answers[i].error.empty() && requests[i].scored < 0 ? answers[i].sampled.token : -1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

// Parameters and logits that hurt: many ties, extremes, few tokens.
SampleRequest hostile(int32_t vocabulary, std::mt19937_64& random) {
  const auto one_of = [&](const auto& values) { return values[random() % std::size(values)]; };
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  const float palette[] = {0.0f, -0.0f, 1.0f, -1.0f, 1e-20f, 5.0f, -30.0f, -kInfinity, kMost, -kMost, kLeast};
  const float temperatures[] = {0.0f, kLeast, 1e-30f, 0.01f, 0.7f, 1.0f, 1.0f, 1.7f, 100.0f, kMost};
  const float top_ps[] = {1.0f, 1.0f, kLeast, 0x1p-41f, 0.25f, 0.5f, 0.9f, 0.99f, 0x0.ffffffp0f};
  const float min_ps[] = {0.0f, 0.0f, 0.0f, kLeast, 0x1p-41f, 0.01f, 0.5f, 1.0f};
  const int32_t top_ks[] = {0, 0, 0, 1, 2, 40, 63, 64, 65, 255, 256, 257, 1000, vocabulary - 1, vocabulary + 7};
  SampleRequest request{.logits = random_floats(static_cast<size_t>(vocabulary), random(),
                                                one_of(std::array{0.0f, 1e-6f, 1.0f, 3.0f, 30.0f}))};
  const size_t drawn_from = 1 + random() % std::size(palette);
  if (random() % 3 == 0)
    for (float& logit : request.logits) logit = palette[random() % drawn_from];
  if (random() % 8 == 0)
    for (float& logit : request.logits) logit = std::round(logit * 4) / 4;
  request.logits[random() % request.logits.size()] = one_of(std::array{0.0f, 1.0f, kMost});
  request.params = {.temperature = one_of(temperatures),
                    .top_k = std::max(-1, one_of(top_ks)),
                    .top_p = one_of(top_ps),
                    .min_p = one_of(min_ps),
                    .seed = random()};
  request.position = static_cast<int64_t>(random() >> 1);
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<uint64_t>(vocabulary)); };
  if (random() % 4 == 0) {
    request.params.repetition_penalty = one_of(std::array{1.0f, 1.3f, 0.5f, kLeast});
    request.params.frequency_penalty = one_of(std::array{0.0f, 0.3f, -2.0f, 2.0f});
    request.params.presence_penalty = one_of(std::array{0.0f, 0.7f, -2.0f});
    for (int i = 0; i < 30; ++i) (i < 12 ? request.prompt : request.generated).push_back(token() % (1 + i));
  }
  if (random() % 4 == 0)
    for (int i = 0; i < 20; ++i)
      request.params.logit_bias.emplace_back(i % 3 ? token() : token() % 3, static_cast<float>(i) - 9.3f);
  if (random() % 4 == 0)
    for (int32_t i = 0; i < (vocabulary + 31) / 32; ++i)
      request.mask.push_back(static_cast<uint32_t>(random() % 8 ? random() : 0));
  if (random() % 3 == 0) {
    request.top_logprobs = std::min(vocabulary, one_of(std::array{0, 1, 5, 20, kMostTopLogprobs}));
    for (int i = 0; i < 3; ++i) request.logprob_ids.push_back(token());
    if (random() % 3 == 0) request.scored = token();
  }
  return request;
}

std::vector<SampleRequest> hostile_batch(int32_t vocabulary, size_t rows, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<SampleRequest> requests;
  for (size_t i = 0; i < rows; ++i) requests.push_back(hostile(vocabulary, random));
  return requests;
}

TEST_P(DeviceSample, HostileRowsOfSmallVocabularies) {
  for (const int32_t vocabulary : {1, 2, 31, 32, 33, 127, 300, 1000, 2049})
    expect_as_cpu(hostile_batch(vocabulary, 100, static_cast<uint64_t>(vocabulary)), vocabulary % 3);
}

TEST_P(DeviceSample, HostileRowsOfLargeVocabularies) {
  for (const int32_t vocabulary : {16385, 49152, 128256, 151936, 262144})
    expect_as_cpu(hostile_batch(vocabulary, 40, static_cast<uint64_t>(vocabulary)));
}

TEST_P(DeviceSample, TheReferenceSaysTheSame) {
  const std::vector<SampleRequest> requests = hostile_batch(1000, 60, 5);
  GpuSampler gpu(1000, 60);
  const std::vector<DeviceAnswer> answers = gpu.run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    if (requests[i].scored >= 0) continue;
    const DeviceAnswer expected = answer_of([&] { return Sampled{.token = ref::sample(requests[i].row(), 1000)}; });
    EXPECT_EQ(answers[i].sampled.token, expected.sampled.token) << description(requests[i]);
  }
}

// The usual parameters, on rows like those of a model.
TEST_P(DeviceSample, UsualParameters) {
  const SamplingParams usual[] = {{.temperature = 0},
                                  {},
                                  {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f},
                                  {.top_k = 50},
                                  {.top_p = 0.9f},
                                  {.top_p = 0.999f},
                                  {.min_p = 0.05f},
                                  {.temperature = 1.2f, .top_k = 400, .top_p = 0.99f, .min_p = 0.01f},
                                  {.top_k = 5000},
                                  {.top_k = 30000, .top_p = 0.9f}};
  for (const int32_t vocabulary : {49152, 128256}) {
    std::vector<SampleRequest> requests;
    for (const SamplingParams& params : usual)
      for (const float spread : {1.0f, 4.0f}) {
        requests.push_back(
            {.logits = random_floats(static_cast<size_t>(vocabulary), requests.size(), spread), .params = params});
        requests.back().params.seed = requests.size();
        requests.back().position = 17;
      }
    expect_as_cpu(requests);
  }
}

// Each part of the kernel once, in one small step: what sanitizers, which are slow, look at.
TEST_P(DeviceSample, ARowOfEachPath) {
  std::vector<SampleRequest> requests;
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 20, .top_p = 0.9f},
        SamplingParams{.top_p = 0.3f}, SamplingParams{.top_k = 2000, .top_p = 0.99f}, SamplingParams{.min_p = 0.1f},
        SamplingParams{.repetition_penalty = 1.2f, .frequency_penalty = 0.5f, .logit_bias = {{3, 2.0f}, {4, -1.0f}}}})
    requests.push_back({.logits = random_floats(3000, requests.size(), 2),
                        .params = params,
                        .prompt = {1, 2, 3},
                        .generated = {3, 5, 5}});
  requests.push_back({.logits = std::vector<float>(3000, 1.0f), .params = {.top_p = 0.5f}});
  requests.push_back({.logits = random_floats(3000, 9), .mask = std::vector<uint32_t>(94, 0x0f0f0f0f)});
  requests.push_back({.logits = random_floats(3000, 10), .top_logprobs = 5, .logprob_ids = {7, 2999}});
  requests.push_back({.logits = random_floats(3000, 11), .top_logprobs = 3, .scored = 17});
  expect_as_cpu(requests);
}

TEST_P(DeviceSample, ManyEqualTokens) {
  std::vector<SampleRequest> requests;
  for (const SamplingParams& params :
       {SamplingParams{.temperature = 0}, SamplingParams{}, SamplingParams{.top_k = 1}, SamplingParams{.top_k = 777},
        SamplingParams{.top_k = 20'000}, SamplingParams{.top_p = 0.5f}, SamplingParams{.top_p = 1e-45f},
        SamplingParams{.top_k = 9'000, .top_p = 0.3f}, SamplingParams{.top_p = 0.1f, .min_p = 1}})
    for (const int32_t top : {-1, 20}) {
      requests.push_back({.logits = std::vector<float>(49'152, -3.5f), .params = params, .top_logprobs = top});
      requests.back().params.seed = requests.size();
    }
  SampleRequest alone{.logits = std::vector<float>(49'152, -kInfinity), .params = {.top_k = 3, .top_p = 0.5f}};
  alone.logits[40'000] = -1e38f;
  alone.top_logprobs = 20;
  requests.push_back(alone);
  alone.params = {.min_p = 1};
  requests.push_back(alone);
  expect_as_cpu(requests);
}

TEST_P(DeviceSample, ARowFailsAlone) {
  std::vector<SampleRequest> requests = hostile_batch(1000, 8, 3);
  for (SampleRequest& request : requests) request = {.logits = random_floats(1000, 7)};
  requests[1].logits[999] = std::nanf("");
  requests[2].logits[3] = kInfinity;
  requests[3].logits.assign(1000, -kInfinity);
  requests[4].mask.assign(32, 0);
  requests[5].logits[0] = std::nanf("");
  requests[5].mask.assign(32, 0xff00ff00);  // also where the mask would hide it
  requests[6].logits[0] = std::nanf("");
  requests[6].scored = 5;
  requests[6].top_logprobs = 2;
  GpuSampler gpu(1000, 8);
  const std::vector<DeviceAnswer> answers = gpu.run(requests);
  for (size_t i = 0; i < requests.size(); ++i) expect_same_answer(answers[i], on_cpu(requests[i]));
  for (const size_t i : {1, 2, 5, 6}) EXPECT_EQ(answers[i].error, "the logits hold NaN or infinity");
  EXPECT_EQ(answers[3].error, "all logits are -inf");
  EXPECT_EQ(answers[4].error, "bias, penalties and mask leave no token");
  const std::vector<int32_t> tokens = gpu.read(gpu.sampler().drawn_tokens().of_row, 8);
  EXPECT_EQ(tokens[0], answers[0].sampled.token);
  for (const size_t i : {1, 2, 3, 4, 5, 6}) EXPECT_EQ(tokens[i], 0);
}

TEST_P(DeviceSample, MoreLogprobsThanTheResultsHoldComeFromTheHost) {
  SampleRequest request{.logits = random_floats(1000, 3, 2), .params = {.seed = 4}, .top_logprobs = 1000};
  std::vector<SampleRequest> requests = {request, request, request};
  requests[1].top_logprobs = 0;
  requests[1].logprob_ids.assign(3000, 7);
  requests[2].top_logprobs = 2;
  GpuSampler gpu(1000, 3);
  gpu.begin(requests);
  EXPECT_TRUE(gpu.sampler().wants_logits());
  gpu.launch(3);
  const std::vector<DeviceAnswer> answers = gpu.answers(3);
  for (size_t i = 0; i < 3; ++i) expect_same_answer(answers[i], on_cpu(requests[i]));
  EXPECT_EQ(answers[0].sampled.top.size(), 1000u);
  EXPECT_EQ(answers[1].sampled.wanted.size(), 3000u);
  gpu.begin({requests[2]});
  EXPECT_FALSE(gpu.sampler().wants_logits());
}

// Drawn tokens are counted on the device: the text is told once.
TEST_P(DeviceSample, PenaltiesFollowTheText) {
  std::vector<SampleRequest> requests;
  for (int i = 0; i < 6; ++i) {
    SampleRequest request{.logits = random_floats(300, static_cast<uint64_t>(i), 1)};
    request.params = {.temperature = i % 2 ? 0.8f : 0.0f,
                      .repetition_penalty = i % 3 ? 1.2f : 1.0f,
                      .frequency_penalty = i == 0 ? 1.5f : 0.25f,
                      .presence_penalty = i == 1 ? -0.5f : 0.5f,
                      .seed = 9};
    request.prompt = {1, 2, 2, i, 299};
    if (i > 2) request.generated = {5, 5, i};
    requests.push_back(request);
  }
  GpuSampler gpu(300, 6);
  for (int step = 0; step < 12; ++step) {
    for (SampleRequest& request : requests)
      request.position = std::ssize(request.prompt) + std::ssize(request.generated);
    gpu.begin(requests, step == 0 || step == 7);
    gpu.launch(6);
    const std::vector<DeviceAnswer> answers = gpu.answers(6);
    for (size_t i = 0; i < requests.size(); ++i) {
      expect_same_answer(answers[i], on_cpu(requests[i]));
      requests[i].generated.push_back(answers[i].sampled.token);
    }
    if (HasFatalFailure()) return;
  }
}

// One recorded step of six rows, replayed with fewer and other rows; the newest token of each is kept.
TEST_P(DeviceSample, ReplaysKeepTheNewestTokens) {
  constexpr int32_t kRows = 6;
  GpuSampler gpu(1000, kRows);
  const Buffer count(sizeof(int32_t), Place::pinned);
  auto& live = *reinterpret_cast<int32_t*>(count.data());
  gpu.exec().stream()->begin_capture();
  gpu.launch(kRows, &live);
  const auto graph = gpu.exec().stream()->end_capture();

  std::vector<int32_t> newest(kRows, 0);
  for (int step = 0; step < 8; ++step) {
    live = 1 + step * 5 % kRows;
    std::vector<SampleRequest> requests = hostile_batch(1000, static_cast<size_t>(live), static_cast<uint64_t>(step));
    gpu.begin(requests);
    gpu.exec().stream()->launch(*graph);
    const std::vector<DeviceAnswer> answers = gpu.answers(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      SCOPED_TRACE(cat("step ", step, ", row ", i, ": ", description(requests[i])));
      expect_same_answer(answers[i], on_cpu(requests[i]));
      if (answers[i].error.empty() && requests[i].scored < 0) newest[i] = answers[i].sampled.token;
    }
    EXPECT_EQ(gpu.read(gpu.sampler().drawn_tokens().of_row, kRows), newest);
    EXPECT_GT(gpu.sampler().seconds(gpu.number()), 0);
    if (HasFatalFailure()) return;
  }
}

TEST_P(DeviceSample, SkippedRowsAndEmptySteps) {
  GpuSampler gpu(100, 3);
  const SampleRequest request{.logits = random_floats(100, 3)};
  gpu.begin({});
  gpu.launch(3);
  EXPECT_TRUE(gpu.answers(0).empty());
  gpu.sampler().begin(++gpu.number());
  gpu.sampler().skip();
  gpu.launch(2);
  EXPECT_EQ(gpu.answers(1)[0].sampled.token, -1);
  EXPECT_EQ(gpu.read(gpu.sampler().tokens_of_step(), 1)[0], -1);
  expect_same_answer(gpu.run({request})[0], on_cpu(request));
}

TEST_P(DeviceSample, RefusesAtTheDoor) {
  GpuSampler gpu(100, 1);
  DeviceSampler& sampler = gpu.sampler();
  SampleRequest request{.logits = std::vector<float>(100)};
  sampler.begin(1);
  const auto drawing = [&] { sampler.draw(request.row(), {0}); };
  request.params.repetition_penalty = 2;
  expect_refused(drawing, "penalties of slot -1");
  request.params = {.temperature = -1};
  expect_refused(drawing, "temperature");
  request.params = {};
  request.top_logprobs = 101;
  expect_refused(drawing, "got 101");
  request.top_logprobs = 0;
  request.logprob_ids = {100};
  expect_refused(drawing, "logprob_ids name token 100");
  request.logprob_ids = {};
  expect_refused([&] { sampler.draw(request.row(), {1}); }, "request row 1 of 1");
  expect_refused([&] { sampler.score(request.row(), 100); }, "token 100");
  expect_refused([&] { sampler.recount(0, std::vector<int32_t>{100}, {}); }, "the text holds token 100");
  drawing();
  expect_refused(drawing, "a step of more than 1 rows");
  expect_refused([&] { sampler.result(1, 0); }, "step 1 is not finished");
}

TEST(DeviceSampler, NeedsAGpu) {
  Exec exec({.threads = 1});
  expect_refused([&] { DeviceSampler({.vocabulary = 8, .rows = 1, .request_rows = 1}, exec); },
                 "needs an Exec with a stream");
}

}  // namespace
}  // namespace quire::ops
