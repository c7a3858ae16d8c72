// Writes the begin, end, grid and name of every kernel that a program launches, those inside graphs too, one a line.
//
//   g++ -std=c++17 -O2 -shared -fPIC -I/usr/local/cuda/include bench/trace_kernels.cc -o libtrace_kernels.so
//   CUDA_INJECTION64_PATH=$PWD/libtrace_kernels.so TRACE_OUT=trace.txt quire bench throughput --device cuda ...
//   python3 bench/step_table.py trace.txt
//
// CUDA loads it into the program (CUPTI's activity interface), which needs no change and no privilege. Kernels that
// begin before the one before has ended are recorded as such. CUPTI is found when it is needed; CUPTI_LIB names it
// elsewhere.
#include <cupti.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

struct Kernel {
  uint64_t begin, end;  // nanoseconds
  int32_t grid[3], threads;
  std::string name;
};

std::mutex guard;
std::vector<Kernel>& kernels() {
  static auto* all = new std::vector<Kernel>;  // outlives whoever still records when the program ends
  return *all;
}

void* library = nullptr;
template <class Function>
Function* cupti(const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
  constexpr size_t kBytes = 8 << 20, kAlignment = 8;
  *buffer = static_cast<uint8_t*>(aligned_alloc(kAlignment, kBytes));
  *size = kBytes;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  static auto* const next = cupti<decltype(cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
  const std::lock_guard lock(guard);
  for (CUpti_Activity* record = nullptr; next(buffer, valid, &record) == CUPTI_SUCCESS;) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    const auto& k = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    kernels().push_back({k.start, k.end, {k.gridX, k.gridY, k.gridZ}, k.blockX, k.name ? k.name : "?"});
  }
  free(buffer);
}

void write_kernels() {
  constexpr uint32_t kForced = 1;
  cupti<decltype(cuptiActivityFlushAll)>("cuptiActivityFlushAll")(kForced);
  const std::lock_guard lock(guard);
  const char* path = getenv("TRACE_OUT");
  FILE* file = fopen(path ? path : "trace.txt", "w");
  if (!file) return perror("the trace was not written");
  for (const Kernel& k : kernels())
    fprintf(file, "%llu %llu %d,%d,%d %d %s\n", static_cast<unsigned long long>(k.begin),
            static_cast<unsigned long long>(k.end), k.grid[0], k.grid[1], k.grid[2], k.threads, k.name.c_str());
  fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  constexpr int kDone = 1;
  for (const char* name : {static_cast<const char*>(getenv("CUPTI_LIB")), "libcupti.so.13",
                           "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so", "/usr/local/cuda/lib64/libcupti.so"})
    if (name && !library) library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    fprintf(stderr, "no CUPTI, so no trace: %s\n", dlerror());
    return kDone;
  }
  cupti<decltype(cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks")(give_buffer, take_buffer);
  cupti<decltype(cuptiActivityEnable)>("cuptiActivityEnable")(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
  atexit(write_kernels);
  return kDone;
}
