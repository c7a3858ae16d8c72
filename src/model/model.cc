#include "model/model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/errors_about.h"
#include "ops/device_bytes.h"
#include "ops/packed_rows.h"

namespace quire::model {
namespace {

using ops::PackedMatrix;
using ops::WeightView;

WeightView view_of(const FileTensor& tensor) {
  return {.type = tensor.type, .data = tensor.data.data(), .outputs = tensor.dims[0], .inputs = tensor.dims[1]};
}

void append_numbers(const FileTensor* tensor, std::vector<float>& numbers) {
  if (!tensor) return;
  const size_t before = numbers.size();
  numbers.resize(before + static_cast<size_t>(tensor->dims[0]));
  dequantise(tensor->type, tensor->data.data(), std::span(numbers).subspan(before));
}

// The tensors' numbers, one after the other; those that are null have none.
std::vector<float> host_numbers_of(std::initializer_list<const FileTensor*> tensors) {
  std::vector<float> numbers;
  for (const FileTensor* tensor : tensors) append_numbers(tensor, numbers);
  return numbers;
}

Vector numbers_of(std::initializer_list<const FileTensor*> tensors, Exec& exec) {
  return {host_numbers_of(tensors), exec};
}

std::array<const FileTensor*, 7> matrices_of(const LayerTensors& layer) {
  return {layer.q, layer.k, layer.v, layer.attention_out, layer.gate, layer.up, layer.down};
}

// Packs matrices one after the other, reports how far it is and hands the file's pages back.
class Packer {
 public:
  Packer(const WeightFiles& files, Exec& exec, const Model::Progress& progress)
      : files_(files), exec_(exec), progress_(progress), total_(std::ssize(files.tensors().output->data)) {
    for (const LayerTensors& layer : files.tensors().layers)
      for (const FileTensor* tensor : matrices_of(layer)) total_ += std::ssize(tensor->data);
    report();
  }

  PackedMatrix pack(std::initializer_list<const FileTensor*> tensors, PackedMatrix::Join join) {
    std::vector<WeightView> views;
    std::vector<std::vector<float>> scales;
    for (const FileTensor* tensor : tensors) views.push_back(scaled_view(*tensor, scales));
    PackedMatrix packed = errors_about(cat(files_.path(), ": the tensor ", (*tensors.begin())->name),
                                       [&] { return PackedMatrix(views, join, exec_); });
    bytes_ += packed.bytes();
    for (const FileTensor* tensor : tensors) finish(*tensor);
    report();
    return packed;
  }

  size_t bytes() const { return bytes_; }

 private:
  WeightView scaled_view(const FileTensor& tensor, std::vector<std::vector<float>>& memory) const {
    WeightView view = view_of(tensor);
    const auto found = files_.tensors().scales.find(&tensor);
    if (found == files_.tensors().scales.end()) return view;
    const ScaleTensor& scales = found->second;
    const int64_t count = std::ssize(scales.tensor->data) / shape_of(scales.tensor->type).bytes;
    std::vector<float>& numbers = memory.emplace_back(static_cast<size_t>(count));
    dequantise(scales.tensor->type, scales.tensor->data.data(), numbers);
    check(std::all_of(numbers.begin(), numbers.end(), [](float scale) { return std::isfinite(scale); }), files_.path(),
          ": the tensor ", scales.tensor->name, " holds NaN or infinity");
    view.scales = {numbers.data(), scales.block_outputs, scales.block_inputs};
    return view;
  }
  void finish(const FileTensor& tensor) {
    files_.forget(tensor);
    done_ += std::ssize(tensor.data);
  }
  void report() const {
    if (progress_) progress_(done_, total_);
  }

  const WeightFiles& files_;
  Exec& exec_;
  const Model::Progress& progress_;
  int64_t done_ = 0;
  int64_t total_;
  size_t bytes_ = 0;  // packed
};

LayerWeights load_layer(const LayerTensors& tensors, Packer& packer, Exec& exec) {
  using Join = PackedMatrix::Join;
  LayerWeights layer;
  layer.attention_norm = numbers_of({tensors.attention_norm}, exec);
  layer.qkv = packer.pack({tensors.q, tensors.k, tensors.v}, Join::stack);
  layer.qkv_bias = numbers_of({tensors.q_bias, tensors.k_bias, tensors.v_bias}, exec);
  layer.q_norm = numbers_of({tensors.q_norm}, exec);
  layer.k_norm = numbers_of({tensors.k_norm}, exec);
  layer.attention_out = packer.pack({tensors.attention_out}, Join::stack);
  layer.attention_post_norm = numbers_of({tensors.attention_post_norm}, exec);
  layer.ffn_norm = numbers_of({tensors.ffn_norm}, exec);
  layer.gate_and_up = packer.pack({tensors.gate, tensors.up}, Join::gate_and_up);
  layer.down = packer.pack({tensors.down}, Join::stack);
  layer.ffn_post_norm = numbers_of({tensors.ffn_post_norm}, exec);
  return layer;
}

std::vector<ops::RopeTable> tables_of(const ModelConfig& config, const FileTensor* factors, const std::string& path) {
  const std::vector<float> numbers = host_numbers_of({factors});
  std::vector<ops::RopeTable> tables;
  for (const RopeSpec& rope : config.ropes)
    tables.push_back(errors_about(path, [&] {
      return ops::rope_table(rope.rotary, rope.theta, rope.scaling, numbers.empty() ? nullptr : numbers.data());
    }));
  return tables;
}

std::vector<Vector> frequencies_of(const std::vector<ops::RopeTable>& tables, Exec& exec) {
  std::vector<Vector> frequencies;
  for (const ops::RopeTable& table : tables) frequencies.emplace_back(table.inverse_frequency, exec);
  return frequencies;
}

// Scales by their shape; nobody reads the numbers.
WeightView shape_of_view(const FileTensor& tensor, const ModelTensors& tensors) {
  WeightView view = view_of(tensor);
  if (const auto found = tensors.scales.find(&tensor); found != tensors.scales.end()) {
    const ScaleTensor& scales = found->second;
    view.scales = {reinterpret_cast<const float*>(scales.tensor->data.data()), scales.block_outputs,
                   scales.block_inputs};
  }
  return view;
}

}  // namespace

int64_t device_weight_bytes(const WeightFiles& files) {
  using Join = PackedMatrix::Join;
  const ModelTensors& all = files.tensors();
  int64_t bytes = bytes_of(all.embedding->type, all.embedding->dims[0] * all.embedding->dims[1]);
  const auto add = [&](std::initializer_list<const FileTensor*> tensors, Join join) {
    std::vector<WeightView> views;
    for (const FileTensor* tensor : tensors) views.push_back(shape_of_view(*tensor, all));
    bytes += ops::device_bytes(views, join);
  };
  for (const LayerTensors& layer : all.layers) {
    add({layer.q, layer.k, layer.v}, Join::stack);
    add({layer.attention_out}, Join::stack);
    add({layer.gate, layer.up}, Join::gate_and_up);
    add({layer.down}, Join::stack);
  }
  add({all.output}, Join::stack);
  return bytes;
}

struct Model::Impl {
  Impl(const std::string& path, Exec& exec, const Progress& progress, LoadFormat format)
      : files(path, format),
        ropes(tables_of(files.config(), files.tensors().rope_factors, path)),
        rope_frequencies(frequencies_of(ropes, exec)),
        device(exec.device()),
        embedding(view_of(*files.tensors().embedding)),
        output_norm(numbers_of({files.tensors().output_norm}, exec)) {
    if (device == Device::cuda) copy_embedding(exec);
    Packer packer(files, exec, progress);
    layers.reserve(files.tensors().layers.size());
    for (const LayerTensors& tensors : files.tensors().layers) layers.push_back(load_layer(tensors, packer, exec));
    output = packer.pack({files.tensors().output}, PackedMatrix::Join::stack);
    weight_bytes = packer.bytes();
  }

  void copy_embedding(Exec& exec) {
    const std::byte* table = embedding.data;
    const int64_t row_bytes = bytes_of(embedding.type, embedding.inputs), stride = embedding.row_stride();
    embedding_copy = ops::filled_on_device(embedding.outputs, row_bytes, exec, [&](int64_t row, std::byte* to) {
      std::copy_n(table + row * stride, row_bytes, to);
    });
    files.forget(*files.tensors().embedding);
    embedding.data = embedding_copy.data();
    embedding.stride = 0;
  }

  WeightFiles files;  // stays mapped for the embedding
  std::vector<ops::RopeTable> ropes;
  std::vector<Vector> rope_frequencies;
  Device device;
  WeightView embedding;
  Buffer embedding_copy;  // of a GPU
  Vector output_norm;
  std::vector<LayerWeights> layers;
  PackedMatrix output;
  size_t weight_bytes = 0;
};

Model::Model(const std::string& path, Exec& exec, const Progress& progress, LoadFormat format)
    : impl_(std::make_unique<Impl>(path, exec, progress, format)) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

const ModelConfig& Model::config() const { return impl_->files.config(); }
const std::vector<LayerWeights>& Model::layers() const { return impl_->layers; }
const Vector& Model::output_norm() const { return impl_->output_norm; }
const ops::PackedMatrix& Model::output() const { return impl_->output; }
const ops::WeightView& Model::embedding() const { return impl_->embedding; }
const std::vector<ops::RopeTable>& Model::ropes() const { return impl_->ropes; }
const std::vector<Vector>& Model::rope_frequencies() const { return impl_->rope_frequencies; }
Device Model::device() const { return impl_->device; }
size_t Model::weight_bytes() const { return impl_->weight_bytes; }
int64_t Model::parameters() const { return impl_->files.parameters(); }
uint64_t Model::fingerprint() const { return impl_->files.fingerprint(); }

}  // namespace quire::model
