// In place of cuda.cc where the build has no CUDA.
#include "base/cuda.h"
#include "base/cuda_absence.h"
#include "base/cuda_memory.h"

namespace quire::cuda {
namespace {

[[noreturn]] void refuse() { throw DeviceError("quire was built without CUDA"); }

}  // namespace

int devices() { return 0; }
std::string why_no_device() { return "quire was built without CUDA's compiler"; }
std::string device_name() { refuse(); }
int compute_capability() { refuse(); }
Memory memory() { refuse(); }
int64_t free_at_start() { refuse(); }

std::byte* allocate_device(size_t) { refuse(); }
void free_device(std::byte*) noexcept {}
std::byte* allocate_pinned(size_t) { refuse(); }
void free_pinned(std::byte*) noexcept {}

CapturedGraph::~CapturedGraph() = default;

Event::Event() { refuse(); }
Event::~Event() = default;
void Event::record(Stream&) { refuse(); }
bool Event::is_over() const { refuse(); }

Stream::Stream() { refuse(); }
Stream::~Stream() = default;
void Stream::copy(std::byte*, const std::byte*, size_t) { refuse(); }
void Stream::begin_capture() { refuse(); }
std::unique_ptr<CapturedGraph> Stream::end_capture() { refuse(); }
void Stream::launch(const CapturedGraph&) { refuse(); }
void Stream::wait() { refuse(); }
double Stream::seconds_of(const std::function<void()>&) { refuse(); }

}  // namespace quire::cuda
