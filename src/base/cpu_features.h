// Which instruction sets this process may use, found once at start.
//
// AMX needs three answers: CPUID names it, the kernel grants the process its tile state, and a small
// product comes out right. Hypervisors advertise AMX while hiding the leaves that describe the tiles, so
// only the third answer counts.
#pragma once
#include <string>
#include <vector>

namespace quire {

// In ascending order; each includes the ones before it, but for avxvnni: that is AVX2 with dots of bytes, which many
// machines with AVX-512 do not have (and need not, having wider ones).
enum class Isa { plain, avx2, avxvnni, avx512, avx512vnni, avx512bf16, amx };
const char* to_string(Isa isa);
Isa isa_from(const std::string& name);  // throws CheckError listing the names

Isa best_isa();                     // the highest that works here
std::vector<Isa> available_isas();  // every one that works here, ascending
void check_available(Isa isa);      // throws CheckError naming the best when it does not work here
std::string cpu_name();             // "AMD EPYC ...", as the system calls it

}  // namespace quire
