// A file of torch.save from anywhere. What is read lies in the file, and is as long as its shape says.
#include "base/torch_file.h"

#include <span>

#include "fuzz.h"

using namespace quire;

namespace {

int64_t bytes_of_element(const std::string& dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "F32" || dtype == "I32") return 4;
  return dtype == "F16" || dtype == "BF16" ? 2 : 1;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  fuzz::attempt([&] {
    for (const NamedTensor& tensor : read_torch_file(file)) {
      int64_t bytes = bytes_of_element(tensor.dtype);
      for (const int64_t dim : tensor.dims) bytes *= dim;
      fuzz::promise(bytes == std::ssize(tensor.data), "a tensor has the bytes that its shape and type say");
      const std::byte* begin = tensor.data.data();
      fuzz::promise(begin >= file.data() && begin + tensor.data.size() <= file.data() + file.size(),
                    "tensors lie in the file");
    }
  });
  return 0;
}
