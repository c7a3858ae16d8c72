#include "base/cpu_features.h"

#include <algorithm>
#include <fstream>

#include "base/check.h"
#include "base/cpu_amx_probe.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#endif

namespace quire {
namespace {

constexpr Isa kAll[] = {Isa::plain, Isa::avx2, Isa::avxvnni, Isa::avx512, Isa::avx512vnni, Isa::avx512bf16, Isa::amx};

#if defined(__x86_64__)
struct Leaf {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

// Zeros when the processor does not have the leaf, so that every feature bit reads as absent.
Leaf leaf(unsigned number, unsigned sub) {
  Leaf regs;
  if (!__get_cpuid_count(number, sub, &regs.a, &regs.b, &regs.c, &regs.d)) return {};
  return regs;
}

constexpr bool all_set(uint64_t word, uint64_t mask) { return (word & mask) == mask; }

// The register state that the operating system saves on a context switch: without it an instruction set that
// CPUID names would lose its registers or fault.
uint64_t saved_state() {
  constexpr unsigned kOsxsave = 1u << 27;
  if (!all_set(leaf(1, 0).c, kOsxsave)) return 0;
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

// Linux keeps the 8 KiB of tile state of a process off until the process asks; threads started later inherit
// the grant.
bool request_tile_state() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
}

std::vector<Isa> detect() {
  constexpr uint64_t kYmmState = 0x6, kZmmState = 0xe6, kTileState = 0x60000;
  constexpr uint64_t kFma = 1u << 12, kF16c = 1u << 29;                                               // leaf 1, ecx
  constexpr uint64_t kAvx2 = 1u << 5, kF = 1u << 16, kDq = 1u << 17, kBw = 1u << 30, kVl = 1u << 31;  // leaf 7, ebx
  constexpr uint64_t kVnni = 1u << 11;                                                                // leaf 7, ecx
  constexpr uint64_t kAmxBf16 = 1u << 22, kAmxTile = 1u << 24, kAmxInt8 = 1u << 25;                   // leaf 7, edx
  constexpr uint64_t kAvxVnni = 1u << 4, kAvx512Bf16 = 1u << 5;                                       // leaf 7.1, eax
  const uint64_t state = saved_state();
  const Leaf basic = leaf(1, 0), extended = leaf(7, 0), more = leaf(7, 1);
  std::vector<Isa> isas{Isa::plain};
  const auto add = [&](Isa isa, bool works) {
    if (works) isas.push_back(isa);
    return works;
  };
  if (!add(Isa::avx2, all_set(state, kYmmState) && all_set(basic.c, kFma | kF16c) && all_set(extended.b, kAvx2)))
    return isas;
  add(Isa::avxvnni, all_set(more.a, kAvxVnni));
  add(Isa::avx512, all_set(state, kZmmState) && all_set(extended.b, kF | kDq | kBw | kVl)) &&
      add(Isa::avx512vnni, all_set(extended.c, kVnni)) && add(Isa::avx512bf16, all_set(more.a, kAvx512Bf16)) &&
      add(Isa::amx, all_set(state, kTileState) && all_set(extended.d, kAmxBf16 | kAmxTile | kAmxInt8) &&
                        request_tile_state() && amx_product_is_right());
  return isas;
}
#else
std::vector<Isa> detect() { return {Isa::plain}; }
#endif

}  // namespace

const char* to_string(Isa isa) {
  constexpr const char* kNames[] = {"plain", "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"};
  return kNames[static_cast<int>(isa)];
}

Isa isa_from(const std::string& name) {
  std::string names;
  for (Isa isa : kAll) {
    if (name == to_string(isa)) return isa;
    names += cat(names.empty() ? "" : ", ", to_string(isa));
  }
  throw CheckError(cat("instruction set \"", name, "\" is not one of ", names));
}

std::vector<Isa> available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Isa best_isa() {
  static const Isa best = available_isas().back();
  return best;
}

void check_available(Isa isa) {
  const std::vector<Isa> isas = available_isas();
  check(std::find(isas.begin(), isas.end(), isa) != isas.end(), "instruction set ", to_string(isa),
        " is not available here; the best is ", to_string(best_isa()));
}

std::string cpu_name() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown CPU";
}

}  // namespace quire
