#include "attn/cpu_choice.h"

namespace quire::attn {

std::string to_string(const Problem& problem) {
  return cat("attention of ", to_string(problem.query_type), " queries over ", to_string(problem.kv_type),
             " keys and values, ", problem.heads, " heads, ", problem.kv_heads, " kv heads, key dim ", problem.key_dim,
             ", value dim ", problem.value_dim);
}

std::string to_string(const Choice& choice) {
  return cat("isa ", to_string(choice.isa), ", ", choice.positions, " positions a tile, ", choice.head_chunk,
             " heads together");
}

namespace {

bool dims_supported(const Problem& p) {
  if (p.key_dim == 576 && p.value_dim == 512) return true;  // MLA, absorbed
  const auto plain_dim = [](int32_t dim) { return dim >= 16 && dim <= 256 && dim % 16 == 0; };
  return plain_dim(p.key_dim) && plain_dim(p.value_dim);
}

// Tiles and dot products take pairs of bf16, 32 elements deep; other types of queries or keys would have to be rounded.
bool fits_bf16_products(const Problem& p) {
  return p.query_type == Dtype::bf16 && p.kv_type == Dtype::bf16 && p.key_dim % 32 == 0 && p.value_dim % 32 == 0;
}

// Integer dots are of no use here.
Isa attention_isa(const Problem& problem, Isa machine) {
  if (machine == Isa::avxvnni) return Isa::avx2;
  if (machine <= Isa::avx512) return machine;
  return machine == Isa::avx512vnni || !fits_bf16_products(problem) ? Isa::avx512 : machine;
}

}  // namespace

Choice choose(const Problem& problem, Isa machine) {
  check(problem.heads > 0 && problem.kv_heads > 0 && problem.heads % problem.kv_heads == 0, "no kernel for ", problem,
        ": query heads are not a multiple of kv heads");
  check(dims_supported(problem), "no kernel for ", problem,
        ": dims are multiples of 16 up to 256, or 576 with values of 512");
  check(problem.query_type != Dtype::f8e4m3, "no kernel for ", problem, ": queries are f32, bf16 or f16");
  const int32_t rows = tile_rows(problem.key_dim);
  const int32_t group = problem.heads / problem.kv_heads;
  return {.isa = attention_isa(problem, machine),
          .positions = tile_positions(problem.heads, problem.kv_heads, problem.key_dim),
          .head_chunk = group < rows ? group : rows};
}

}  // namespace quire::attn
