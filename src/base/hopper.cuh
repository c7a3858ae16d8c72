// Hopper's own instructions, one function each: barriers that count bytes, copies of boxes of a tensor by TMA, products
// by a warpgroup. Only code for sm_90a has them; everything here is empty elsewhere, where no kernel that uses it is
// launched.
//
// Operands of products lie in shared memory as panels: lines of 128 bytes, one for each row, 64 columns wide, whose
// 16-byte pieces are permuted by the line's number (the 128-byte swizzle). A panel begins at a multiple of 1024 bytes.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "base/tensor_core.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QUIRE_HOPPER 1
#else
#define QUIRE_HOPPER 0
#endif

namespace quire::cuda::hopper {

constexpr int32_t kWarpgroup = 128;
constexpr int32_t kPanelColumns = 64, kLineBytes = 128;

// Where 16-byte piece `piece` of line `line` of a panel lies.
inline __device__ uint32_t piece_at(uint32_t panel, int32_t line, int32_t piece) {
  return panel + line * kLineBytes + ((piece ^ (line & 7)) << 4);
}

// --- registers move between warpgroups

template <int32_t kRegisters>
__device__ void warpgroup_reg_alloc() {
#if QUIRE_HOPPER
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int32_t kRegisters>
__device__ void warpgroup_reg_dealloc() {
#if QUIRE_HOPPER
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

// --- barriers

// As named_barrier_sync, without waiting.
inline __device__ void named_barrier_arrive(int32_t id, int32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// A barrier in shared memory: a phase is over when its arrivals came, and all bytes that they announced.
using Barrier = uint64_t;

inline __device__ void init_barrier(Barrier* barrier, int32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
// What was written before this, barriers included, is there for TMA and the tensor cores.
inline __device__ void fence_proxy_async() {
#if QUIRE_HOPPER
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
inline __device__ void arrive(Barrier* barrier) {
#if QUIRE_HOPPER
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
inline __device__ void arrive_expect_tx(Barrier* barrier, int32_t bytes) {
#if QUIRE_HOPPER
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}
// Arrives when all cp.async of this thread so far are done.
inline __device__ void cp_async_arrive(Barrier* barrier) {
#if QUIRE_HOPPER
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
#endif
}
inline __device__ void wait(Barrier* barrier, uint32_t phase) {
#if QUIRE_HOPPER
  asm volatile(
      "{\n"
      "  .reg .pred done;\n"
      "again:\n"
      "  mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "  @done bra over;\n"
      "  bra again;\n"
      "over:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
#endif
}
// Whether wait() would return at once; all threads of the warp ask.
inline __device__ bool test_wait([[maybe_unused]] Barrier* barrier, [[maybe_unused]] uint32_t phase) {
#if QUIRE_HOPPER
  uint32_t done = 0;
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      "  selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(done)
      : "r"(shared_address(barrier)), "r"(phase)
      : "memory");
  return __all_sync(~0u, done);
#else
  return false;
#endif
}

// True for one thread of the warp, of which all ask. The assembler knows that it is one: operands of its copies need
// no loop over the threads' own.
inline __device__ bool elect_one() {
  uint32_t elected = 0;
#if QUIRE_HOPPER
  asm volatile(
      "{\n"
      "  .reg .pred p;\n"
      "  elect.sync _|p, 0xffffffff;\n"
      "  selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(elected));
#endif
  return elected;
}

// A barrier's phases in turn, for a ring of `count` stages.
struct PipelineState {
  int32_t stage = 0;
  uint32_t phase = 0;
  __device__ void next(int32_t count) {
    if (++stage == count) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// --- copies

inline __device__ void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

inline __device__ void prefetch_tensor_map(const CUtensorMap* map) {
#if QUIRE_HOPPER
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<uint64_t>(map)) : "memory");
#endif
}
// A stretch of memory, whole pieces of 16 bytes, that is read once: it leaves L2 before anything else does. The barrier
// counts its bytes.
inline __device__ void bulk_load_once([[maybe_unused]] uint32_t to, [[maybe_unused]] const void* from,
                                      [[maybe_unused]] int32_t bytes, [[maybe_unused]] Barrier* barrier) {
#if QUIRE_HOPPER
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(evict_first_policy())
      : "memory");
#endif
}
// A stretch of memory into the second cache, whole pieces of 16 bytes.
inline __device__ void bulk_prefetch([[maybe_unused]] const void* from, [[maybe_unused]] int32_t bytes) {
#if QUIRE_HOPPER
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
// A box of a tensor [slots, heads, columns] from the given place on; the barrier counts its bytes.
inline __device__ void tma_load(uint32_t to, const CUtensorMap* map, Barrier* barrier, int32_t column, int32_t head,
                                int32_t slot) {
#if QUIRE_HOPPER
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(slot)
      : "memory");
#endif
}
// The same of what is read once: it leaves the second cache before anything else does.
inline __device__ void tma_load_once([[maybe_unused]] uint32_t to, [[maybe_unused]] const CUtensorMap* map,
                                     [[maybe_unused]] Barrier* barrier, [[maybe_unused]] int32_t column,
                                     [[maybe_unused]] int32_t head, [[maybe_unused]] int32_t slot) {
#if QUIRE_HOPPER
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(slot),
      "l"(evict_first_policy())
      : "memory");
#endif
}
// The same of a tensor of four dimensions.
inline __device__ void tma_load_once([[maybe_unused]] uint32_t to, [[maybe_unused]] const CUtensorMap* map,
                                     [[maybe_unused]] Barrier* barrier, [[maybe_unused]] int32_t column,
                                     [[maybe_unused]] int32_t row, [[maybe_unused]] int32_t part,
                                     [[maybe_unused]] int32_t panel) {
#if QUIRE_HOPPER
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(part), "r"(panel),
      "l"(evict_first_policy())
      : "memory");
#endif
}
// The same box into the second cache, with a policy for it (evict_first_policy() and such).
inline __device__ void tma_prefetch_by_policy([[maybe_unused]] const CUtensorMap* map, [[maybe_unused]] int32_t column,
                                              [[maybe_unused]] int32_t head, [[maybe_unused]] int32_t slot,
                                              [[maybe_unused]] uint64_t policy) {
#if QUIRE_HOPPER
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global.L2::cache_hint [%0, {%1, %2, %3}], %4;" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(column), "r"(head), "r"(slot), "l"(policy)
               : "memory");
#endif
}

// Four matrices of 8 x 8 two-byte elements, laid over the warp as the sums of a product are: lane l gives the address
// of row l % 8 of matrix l / 8.
inline __device__ void stmatrix_x4([[maybe_unused]] uint32_t to, [[maybe_unused]] const uint32_t (&r)[4]) {
#if QUIRE_HOPPER
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(r[0]), "r"(r[1]),
               "r"(r[2]), "r"(r[3])
               : "memory");
#endif
}

// --- products of a warpgroup

// The matrix descriptor by which wgmma finds an operand: rows of 8 lines follow each other at 1024 bytes. `panels`: the
// distance of panels for an operand whose rows are the dimension that is summed over (values), else of no meaning.
inline __device__ uint64_t wgmma_descriptor(uint32_t address, uint32_t panels = 16) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62, kEightLines = 1024;
  return ((address & 0x3ffff) >> 4) | (uint64_t{panels >> 4} << 16) | ((kEightLines >> 4) << 32) | kSwizzle128;
}

// The descriptor of what lies that many bytes further on. The address is all that changes, so the upper half stays
// where it is.
inline __device__ uint64_t advance_descriptor(uint64_t descriptor, int32_t bytes) {
  return (descriptor & ~uint64_t{0xffffffff}) | (static_cast<uint32_t>(descriptor) + bytes / 16);
}

inline __device__ void wgmma_fence() {
#if QUIRE_HOPPER
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
inline __device__ void wgmma_commit() {
#if QUIRE_HOPPER
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int32_t kLeft>
__device__ void wgmma_wait() {
#if QUIRE_HOPPER
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kLeft) : "memory");
#endif
}

// The instruction wants each of its registers named. c[N / 2]: this thread's share of 64 x N sums, as mma.sync has
// them: four for every eight columns, two neighbours of row lane / 4 (+ 16 for each warp), two of the row eight below.
#define QUIRE_NAMES_4 "%0, %1, %2, %3"
#define QUIRE_NAMES_8 QUIRE_NAMES_4 ", %4, %5, %6, %7"
#define QUIRE_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define QUIRE_NAMES_24 QUIRE_NAMES_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define QUIRE_NAMES_32 QUIRE_NAMES_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define QUIRE_NAMES_64                                                               \
  QUIRE_NAMES_32                                                                     \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define QUIRE_NAMES_40 QUIRE_NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define QUIRE_NAMES_48 QUIRE_NAMES_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define QUIRE_NAMES_56 QUIRE_NAMES_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define QUIRE_NAMES_80 QUIRE_NAMES_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define QUIRE_NAMES_96 QUIRE_NAMES_80 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define QUIRE_NAMES_112 \
  QUIRE_NAMES_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define QUIRE_NAMES_128                                                                          \
  QUIRE_NAMES_64                                                                                 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"             \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define QUIRE_SUMS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define QUIRE_SUMS_8(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4)
#define QUIRE_SUMS_16(i) QUIRE_SUMS_4(i), QUIRE_SUMS_4(i + 4), QUIRE_SUMS_4(i + 8), QUIRE_SUMS_4(i + 12)
#define QUIRE_SUMS_24(i) QUIRE_SUMS_16(i), QUIRE_SUMS_8(i + 16)
#define QUIRE_SUMS_32(i) QUIRE_SUMS_16(i), QUIRE_SUMS_16(i + 16)
#define QUIRE_SUMS_40(i) QUIRE_SUMS_32(i), QUIRE_SUMS_8(i + 32)
#define QUIRE_SUMS_48(i) QUIRE_SUMS_32(i), QUIRE_SUMS_16(i + 32)
#define QUIRE_SUMS_56(i) QUIRE_SUMS_48(i), QUIRE_SUMS_8(i + 48)
#define QUIRE_SUMS_64(i) QUIRE_SUMS_32(i), QUIRE_SUMS_32(i + 32)
#define QUIRE_SUMS_80(i) QUIRE_SUMS_64(i), QUIRE_SUMS_16(i + 64)
#define QUIRE_SUMS_96(i) QUIRE_SUMS_64(i), QUIRE_SUMS_32(i + 64)
#define QUIRE_SUMS_112(i) QUIRE_SUMS_64(i), QUIRE_SUMS_48(i + 64)
#define QUIRE_SUMS_128(i) QUIRE_SUMS_64(i), QUIRE_SUMS_64(i + 64)

// COUNT: COLUMNS / 2. FACTORS and ADD name what follows the sums, the inputs.
#define QUIRE_WGMMA(COLUMNS, COUNT, TYPE, FACTORS, ADD, ...)                                                        \
  asm volatile(                                                                                                     \
      "{\n"                                                                                                         \
      "  .reg .pred p;\n"                                                                                           \
      "  setp.ne.b32 p, " ADD                                                                                       \
      ", 0;\n"                                                                                                      \
      "  wgmma.mma_async.sync.aligned.m64n" COLUMNS "k16.f32." TYPE "." TYPE " {" QUIRE_NAMES_##COUNT "}, " FACTORS \
                                                                                                      ";\n"         \
                                                                                                      "}"           \
      : QUIRE_SUMS_##COUNT(0)                                                                                       \
      : __VA_ARGS__)

// c (+)= A B^T of 16 columns of each: 64 rows of queries, kN rows of keys.
template <class T, int32_t kN>
__device__ void wgmma_qk([[maybe_unused]] float* c, [[maybe_unused]] uint64_t a, [[maybe_unused]] uint64_t b,
                         [[maybe_unused]] int32_t add) {
#if QUIRE_HOPPER
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kN == 64 || kN == 128);
  if constexpr (kN == 64 && kBf16)
    QUIRE_WGMMA("64", 32, "bf16", "%32, %33, p, 1, 1, 0, 0", "%34", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 64)
    QUIRE_WGMMA("64", 32, "f16", "%32, %33, p, 1, 1, 0, 0", "%34", "l"(a), "l"(b), "r"(add));
  else if constexpr (kBf16)
    QUIRE_WGMMA("128", 64, "bf16", "%64, %65, p, 1, 1, 0, 0", "%66", "l"(a), "l"(b), "r"(add));
  else
    QUIRE_WGMMA("128", 64, "f16", "%64, %65, p, 1, 1, 0, 0", "%66", "l"(a), "l"(b), "r"(add));
#endif
}

// c (+)= A B^T of 16 columns of each, all bf16: 64 rows of weights and kN rows of tokens, or the other way round.
template <int32_t kN>
__device__ void wgmma_weights([[maybe_unused]] float* c, [[maybe_unused]] uint64_t a, [[maybe_unused]] uint64_t b,
                              [[maybe_unused]] int32_t add) {
#if QUIRE_HOPPER
  if constexpr (kN == 8)
    QUIRE_WGMMA("8", 4, "bf16", "%4, %5, p, 1, 1, 0, 0", "%6", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 16)
    QUIRE_WGMMA("16", 8, "bf16", "%8, %9, p, 1, 1, 0, 0", "%10", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 32)
    QUIRE_WGMMA("32", 16, "bf16", "%16, %17, p, 1, 1, 0, 0", "%18", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 48)
    QUIRE_WGMMA("48", 24, "bf16", "%24, %25, p, 1, 1, 0, 0", "%26", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 80)
    QUIRE_WGMMA("80", 40, "bf16", "%40, %41, p, 1, 1, 0, 0", "%42", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 96)
    QUIRE_WGMMA("96", 48, "bf16", "%48, %49, p, 1, 1, 0, 0", "%50", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 112)
    QUIRE_WGMMA("112", 56, "bf16", "%56, %57, p, 1, 1, 0, 0", "%58", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 160)
    QUIRE_WGMMA("160", 80, "bf16", "%80, %81, p, 1, 1, 0, 0", "%82", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 192)
    QUIRE_WGMMA("192", 96, "bf16", "%96, %97, p, 1, 1, 0, 0", "%98", "l"(a), "l"(b), "r"(add));
  else if constexpr (kN == 224)
    QUIRE_WGMMA("224", 112, "bf16", "%112, %113, p, 1, 1, 0, 0", "%114", "l"(a), "l"(b), "r"(add));
  else
    wgmma_qk<__nv_bfloat16, kN>(c, a, b, add);
#endif
}

// c (+)= A B: 64 rows of 16 probabilities in registers, 16 rows of kN columns of values.
template <class T, int32_t kN>
__device__ void wgmma_pv([[maybe_unused]] float* c, [[maybe_unused]] const uint32_t* a, [[maybe_unused]] uint64_t b,
                         [[maybe_unused]] int32_t add) {
#if QUIRE_HOPPER
#define QUIRE_PROBS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)
  constexpr bool kBf16 = std::is_same_v<T, __nv_bfloat16>;
  static_assert(kN == 32 || kN == 64 || kN == 128);
  if constexpr (kN == 32 && kBf16)
    QUIRE_WGMMA("32", 16, "bf16", "{%16, %17, %18, %19}, %20, p, 1, 1, 1", "%21", QUIRE_PROBS);
  else if constexpr (kN == 32)
    QUIRE_WGMMA("32", 16, "f16", "{%16, %17, %18, %19}, %20, p, 1, 1, 1", "%21", QUIRE_PROBS);
  else if constexpr (kN == 64 && kBf16)
    QUIRE_WGMMA("64", 32, "bf16", "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "%37", QUIRE_PROBS);
  else if constexpr (kN == 64)
    QUIRE_WGMMA("64", 32, "f16", "{%32, %33, %34, %35}, %36, p, 1, 1, 1", "%37", QUIRE_PROBS);
  else if constexpr (kBf16)
    QUIRE_WGMMA("128", 64, "bf16", "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69", QUIRE_PROBS);
  else
    QUIRE_WGMMA("128", 64, "f16", "{%64, %65, %66, %67}, %68, p, 1, 1, 1", "%69", QUIRE_PROBS);
#undef QUIRE_PROBS
#endif
}

// The same with the probabilities in shared memory too, for 256 columns of values.
template <class T>
__device__ void wgmma_pv_shared([[maybe_unused]] float* c, [[maybe_unused]] uint64_t a, [[maybe_unused]] uint64_t b,
                                [[maybe_unused]] int32_t add) {
#if QUIRE_HOPPER
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    QUIRE_WGMMA("256", 128, "bf16", "%128, %129, p, 1, 1, 0, 1", "%130", "l"(a), "l"(b), "r"(add));
  else
    QUIRE_WGMMA("256", 128, "f16", "%128, %129, p, 1, 1, 0, 1", "%130", "l"(a), "l"(b), "r"(add));
#endif
}
// The same with the probabilities in registers.
template <class T>
__device__ void wgmma_pv_wide([[maybe_unused]] float* c, [[maybe_unused]] const uint32_t* a,
                              [[maybe_unused]] uint64_t b, [[maybe_unused]] int32_t add) {
#if QUIRE_HOPPER
#define QUIRE_PROBS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add)
  if constexpr (std::is_same_v<T, __nv_bfloat16>)
    QUIRE_WGMMA("256", 128, "bf16", "{%128, %129, %130, %131}, %132, p, 1, 1, 1", "%133", QUIRE_PROBS);
  else
    QUIRE_WGMMA("256", 128, "f16", "{%128, %129, %130, %131}, %132, p, 1, 1, 1", "%133", QUIRE_PROBS);
#undef QUIRE_PROBS
#endif
}
#undef QUIRE_WGMMA
#undef QUIRE_NAMES_4
#undef QUIRE_NAMES_8
#undef QUIRE_NAMES_16
#undef QUIRE_NAMES_24
#undef QUIRE_NAMES_32
#undef QUIRE_NAMES_40
#undef QUIRE_NAMES_48
#undef QUIRE_NAMES_56
#undef QUIRE_NAMES_64
#undef QUIRE_NAMES_80
#undef QUIRE_NAMES_96
#undef QUIRE_NAMES_112
#undef QUIRE_NAMES_128
#undef QUIRE_SUMS_4
#undef QUIRE_SUMS_8
#undef QUIRE_SUMS_16
#undef QUIRE_SUMS_24
#undef QUIRE_SUMS_32
#undef QUIRE_SUMS_40
#undef QUIRE_SUMS_48
#undef QUIRE_SUMS_56
#undef QUIRE_SUMS_64
#undef QUIRE_SUMS_80
#undef QUIRE_SUMS_96
#undef QUIRE_SUMS_112
#undef QUIRE_SUMS_128

// --- clusters: thread blocks on neighbouring multiprocessors, which reach each other's shared memory

// Until all threads of the cluster that have not ended are here, and see what the others wrote.
inline __device__ void cluster_sync() {
#if QUIRE_HOPPER
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
// Sixteen bytes of the shared memory of the block of that rank, where `here` lies in this one's.
inline __device__ float4 load_shared_of([[maybe_unused]] uint32_t here, [[maybe_unused]] int32_t rank) {
  float4 x = {};
#if QUIRE_HOPPER
  asm volatile(
      "{\n"
      "  .reg .b32 there;\n"
      "  mapa.shared::cluster.u32 there, %4, %5;\n"
      "  ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n"
      "}"
      : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
      : "r"(here), "r"(rank)
      : "memory");
#endif
  return x;
}
// At the barrier of the block of that rank, which lies there as this one's does here.
inline __device__ void arrive_at([[maybe_unused]] Barrier* barrier, [[maybe_unused]] int32_t rank) {
#if QUIRE_HOPPER
  asm volatile(
      "{\n"
      "  .reg .b32 there;\n"
      "  mapa.shared::cluster.u32 there, %0, %1;\n"
      "  mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
#endif
}
// As tma_load, with a policy for the second cache, into the shared memory of all blocks in `ranks`, a bit each; the
// barrier of each counts the bytes.
inline __device__ void tma_load_multicast([[maybe_unused]] uint32_t to, [[maybe_unused]] const CUtensorMap* map,
                                          [[maybe_unused]] Barrier* barrier, [[maybe_unused]] int32_t column,
                                          [[maybe_unused]] int32_t head, [[maybe_unused]] int32_t slot,
                                          [[maybe_unused]] uint16_t ranks, [[maybe_unused]] uint64_t policy) {
#if QUIRE_HOPPER
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(reinterpret_cast<uint64_t>(map)), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(slot), "h"(ranks),
      "l"(policy)
      : "memory");
#endif
}

}  // namespace quire::cuda::hopper
