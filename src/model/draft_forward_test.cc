// A head's layer against plain loops in double over a text without pages, and what features are against the target
// itself, cut off before their layer.
#include "model/draft_forward.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "model/testing.h"
#include "model/testing_eagle.h"

namespace quire::model {
namespace {

using testing::HeadWriter;
using testing::tiny_head;
using testing::TinyFile;
using testing::TinyHead;
using testing::TinyHeadFile;
using Numbers = std::vector<double>;

Numbers numbers_of(const HeadWriter& head, const std::string& name) {
  const HeadWriter::Tensor& tensor = head.tensors.at(name);
  std::vector<float> narrow(tensor.data.size() / sizeof(float));
  std::memcpy(narrow.data(), tensor.data.data(), tensor.data.size());
  return {narrow.begin(), narrow.end()};
}

Numbers product(const Numbers& matrix, const Numbers& in) {
  Numbers out(matrix.size() / in.size());
  for (size_t o = 0; o < out.size(); ++o)
    for (size_t i = 0; i < in.size(); ++i) out[o] += matrix[o * in.size() + i] * in[i];
  return out;
}

Numbers normed(const Numbers& x, const Numbers& weight) {
  double squares = 0;
  for (const double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-5);
  Numbers out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * factor * weight[i]);
  return out;
}

Numbers sum(Numbers a, const Numbers& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// One text, slot by slot, as docs/speculation.md has it.
class ReferenceHead {
 public:
  ReferenceHead(const Model& target, const HeadWriter& head, const TinyHead& tiny)
      : target_(target), head_(head), tiny_(tiny) {}

  struct Result {
    Numbers logits, state;
  };
  Result slot(int32_t token, const Numbers& state) {
    std::vector<float> narrow(64);
    ops::read_weights(target_.embedding(), token, 0, narrow);
    const Numbers embedding(narrow.begin(), narrow.end());
    Numbers h = normed(embedding, of("midlayer.input_layernorm.weight"));
    const Numbers second = normed(state, of("midlayer.hidden_norm.weight"));
    h.insert(h.end(), second.begin(), second.end());
    Numbers q = product(of("midlayer.self_attn.q_proj.weight"), h),
            k = product(of("midlayer.self_attn.k_proj.weight"), h);
    rotate(q);
    rotate(k);
    keys_.push_back(k);
    values_.push_back(product(of("midlayer.self_attn.v_proj.weight"), h));
    Numbers x = sum(state, product(of("midlayer.self_attn.o_proj.weight"), attend(q)));
    const Numbers n = normed(x, of("midlayer.post_attention_layernorm.weight"));
    Numbers gate = product(of("midlayer.mlp.gate_proj.weight"), n);
    const Numbers up = product(of("midlayer.mlp.up_proj.weight"), n);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
    x = sum(x, product(of("midlayer.mlp.down_proj.weight"), gate));
    const Numbers y = normed(x, of("norm.weight"));
    Numbers logits = product(of("lm_head.weight"), y);
    for (double& logit : logits) logit /= tiny_.temperature;
    return {logits, tiny_.norm_output ? y : x};
  }

 private:
  Numbers of(const std::string& name) const { return numbers_of(head_, name); }
  void rotate(Numbers& heads) const {
    const int32_t half = tiny_.head_dim / 2;
    for (size_t first = 0; first < heads.size(); first += tiny_.head_dim)
      for (int32_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(keys_.size()) * std::pow(1e4, -static_cast<double>(i) / half);
        double &a = heads[first + i], &b = heads[first + i + half];
        const double c = std::cos(angle), s = std::sin(angle), old = a;
        a = a * c - b * s;
        b = b * c + old * s;
      }
  }
  Numbers attend(const Numbers& q) const {
    const int32_t dim = tiny_.head_dim, group = tiny_.heads / tiny_.kv_heads;
    Numbers out(q.size());
    for (int32_t head = 0; head < tiny_.heads; ++head) {
      Numbers weights;
      double total = 0;
      for (const Numbers& key : keys_) {
        double dot = 0;
        for (int32_t i = 0; i < dim; ++i) dot += q[head * dim + i] * key[head / group * dim + i];
        total += weights.emplace_back(std::exp(dot / std::sqrt(dim)));
      }
      for (size_t slot = 0; slot < values_.size(); ++slot)
        for (int32_t i = 0; i < dim; ++i)
          out[head * dim + i] += weights[slot] / total * values_[slot][head / group * dim + i];
    }
    return out;
  }

  const Model& target_;
  const HeadWriter& head_;
  const TinyHead& tiny_;
  std::vector<Numbers> keys_, values_;
};

void expect_near(const std::vector<float>& a, const Numbers& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-4) << what << ", number " << i;
}

class DraftForwardTest : public ::testing::TestWithParam<TinyHead> {
 protected:
  Exec exec_{{.threads = 2}};
  const TinyFile target_file_{{}};
  const Model target_{target_file_.path(), exec_};
};

// A text in two calls, then drafts that hand their states on.
TEST_P(DraftForwardTest, ComputesWhatTheDocumentSays) {
  const TinyHead& tiny = GetParam();
  const HeadWriter writer = tiny_head(target_, tiny);
  const TinyHeadFile file(writer);
  const EagleHead head(file.path(), target_, exec_);
  ReferenceHead reference(target_, writer, tiny);
  testing::HeadSlots world(head, exec_, PageSize(1), Dtype::f32);
  const std::vector<int32_t> text = testing::random_ids(14, 320, 5);
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  std::vector<Numbers> states(1, Numbers(64));  // slot 0 has zeros
  while (states.size() < text.size()) {
    Numbers& state = states.emplace_back(64);
    for (double& number : state) number = static_cast<float>(normal(random));
  }
  ReferenceHead::Result last;
  for (const auto& [begin, end] : {std::pair<size_t, size_t>{0, 9}, {9, 14}}) {
    std::vector<std::vector<float>> entering;
    for (size_t i = begin; i < end; ++i) entering.emplace_back(states[i].begin(), states[i].end());
    world.run(attn::Mode::draft_extend, std::span(text).subspan(begin, end - begin), entering);
    for (size_t i = begin; i < end; ++i) {
      last = reference.slot(text[i], states[i]);
      expect_near(world.logits(static_cast<int32_t>(i - begin)), last.logits, cat("logits of slot ", i));
      expect_near(world.state(static_cast<int32_t>(i - begin)), last.state, cat("state of slot ", i));
    }
  }
  for (const int32_t token : {3, 250, 17}) {
    const std::vector<float> entering(last.state.begin(), last.state.end());
    world.run(attn::Mode::decode, {&token, 1}, {&entering, 1});
    last = reference.slot(token, last.state);
    expect_near(world.logits(0), last.logits, cat("logits of draft ", token));
    expect_near(world.state(0), last.state, cat("state of draft ", token));
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, DraftForwardTest,
                         ::testing::Values(TinyHead{}, TinyHead{.norm_output = false, .temperature = 0.5},
                                           TinyHead{.heads = 6, .kv_heads = 1, .head_dim = 16}));

// With an identity in the place of one feature, the projection is what the target, cut off before that layer, has as
// its normed last row: all norms are ones.
TEST(Features, AreWhatEntersTheirLayers) {
  Exec exec{{.threads = 2}};
  const auto of_layers = [](int32_t layers) {
    return testing::TinyModel{.layers = layers, .change = [](testing::GgufWriter& gguf) {
                                const std::vector<float> ones(64, 1.0f);
                                const auto bytes = std::as_bytes(std::span(ones));
                                gguf.tensor("output_norm.weight", BlockType::f32, {64}, {bytes.begin(), bytes.end()});
                              }};
  };
  const std::vector<int32_t> text = testing::random_ids(7, 320, 1);
  const TinyFile whole_file(of_layers(5));
  const Model whole(whole_file.path(), exec);
  for (const auto& [place, layer] : {std::pair<int32_t, int32_t>{0, 1}, {1, 2}, {2, 4}}) {
    HeadWriter writer = tiny_head(whole, {.feature_layers = {1, 2, 4}});
    std::vector<float> identity(size_t{64} * 192);
    for (int32_t i = 0; i < 64; ++i) identity[i * 192 + place * 64 + i] = 1;
    writer.set_matrix("fc.weight", 64, identity);
    for (int i = 0; i < 3; ++i) writer.set_vector(cat("fc_norm.", i, ".weight"), std::vector<float>(64, 1.0f));
    const TinyHeadFile file(writer);
    const EagleHead head(file.path(), whole, exec);
    testing::Requests requests(whole, exec, {.features = &head.features()});
    requests.extend(0, text);

    const TinyFile part_file(of_layers(layer));
    const Model part(part_file.path(), exec);
    testing::Requests cut(part, exec, {});
    cut.extend(0, text);
    for (size_t i = 0; i < text.size(); ++i)
      for (int32_t j = 0; j < 64; ++j)
        ASSERT_NEAR(requests.forward().features().row(i)[j], cut.forward().hidden().row(i)[j], 1e-5)
            << "layer " << layer << ", row " << i;
  }
}

// How many rows have features is read when the step runs: of the others nothing is computed.
TEST(Features, AreOfAsManyRowsAsAreWanted) {
  Exec exec{{.threads = 2}};
  const TinyFile target_file{{}};
  const Model target(target_file.path(), exec);
  const TinyHeadFile head_file(tiny_head(target));
  const EagleHead head(head_file.path(), target, exec);
  int32_t wanted = 7;
  testing::Requests requests(target, exec, {.features = &head.features(), .feature_rows = &wanted});
  const auto features = [&] {
    const Rows<const float> rows = requests.forward().features();
    return std::vector<float>(rows.row(0), rows.row(7));
  };
  requests.extend(0, testing::random_ids(7, 320, 1));
  const std::vector<float> of_first = features();
  wanted = 0;
  requests.extend(1, testing::random_ids(7, 320, 2));
  EXPECT_EQ(features(), of_first);
  wanted = 2;
  requests.extend(2, testing::random_ids(7, 320, 2));
  const std::vector<float> of_two = features();
  const auto same_from = static_cast<int64_t>(2 * target.config().width);
  EXPECT_FALSE(std::equal(of_two.begin(), of_two.begin() + same_from, of_first.begin()));
  EXPECT_TRUE(std::equal(of_two.begin() + same_from, of_two.end(), of_first.begin() + same_from));
}

}  // namespace
}  // namespace quire::model
