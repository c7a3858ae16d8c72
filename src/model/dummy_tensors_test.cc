#include "model/dummy_tensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/testing/expect_refused.h"
#include "model/testing.h"

namespace quire::model {
namespace {

constexpr const char* kConfig =
    R"({"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 128, "intermediate_size": 256,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 320, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0})";

class DummyModel : public ::testing::Test {
 protected:
  DummyModel() : folder_(std::filesystem::temp_directory_path() / cat("quire_dummy_", getpid())) {
    std::filesystem::create_directories(folder_);
    std::ofstream(folder_ / "config.json") << kConfig;
  }
  ~DummyModel() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
  Exec exec_{{.threads = 2}};
};

TEST_F(DummyModel, HasTheShapeOfItsConfigAndFiniteLogits) {
  const Model model(folder_.string(), exec_, {}, LoadFormat::dummy);
  // Worked by hand: three layers of 128 x (256 + 128 + 3 * 256) and two norms; embedding, output and the last norm.
  EXPECT_EQ(model.parameters(), 3 * (128 * (256 + 128 + 3 * 256) + 2 * 128) + 2 * 320 * 128 + 128);
  testing::Requests requests(model, exec_, {});
  const auto logits = requests.extend(0, testing::random_ids(20, 320, 1));
  ASSERT_EQ(logits.size(), 20u);
  float least = 0, most = 0;
  for (const float logit : logits.back()) {
    ASSERT_TRUE(std::isfinite(logit));
    least = std::min(least, logit);
    most = std::max(most, logit);
  }
  EXPECT_GT(most - least, 0.1f) << "tokens are not all alike";
}

TEST_F(DummyModel, WithoutTheWordItsWeightsAreMissing) {
  expect_refused([&] { Model(folder_.string(), exec_); }, "model.safetensors");
}

TEST_F(DummyModel, IsAFolder) {
  const testing::TinyFile file({});
  expect_refused([&] { Model(file.path(), exec_, {}, LoadFormat::dummy); }, "is a folder with a config.json");
}

}  // namespace
}  // namespace quire::model
