// OLMo 2: norms after each half in place of those before, and norms of queries and keys over all heads together.
#include "model/family.h"

namespace quire::model {
namespace {

void read_olmo2(const Keys& keys, ModelConfig& config) {
  read_dense(keys, config);
  if (keys.gguf()) keys.refuse("attention.sliding_window");  // OLMo 3 under the same name: windows in some layers
  for (LayerSpec& layer : config.layers) {
    layer.attention.qk_norm = QkNorm::whole_row;
    layer.norm_before = false;
    layer.norm_after = true;
  }
}

}  // namespace

extern const Family kOlmo2 = {"olmo2", "Olmo2ForCausalLM", read_olmo2};

}  // namespace quire::model
