// The loops that find what a core can do at most: independent products in registers, and reads in a row. One set for
// each instruction set, in a source of its own with its own flags; call one only where that instruction set works.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::bench {

// Runs `rounds` rounds of products and returns how many operations they were.
using ProductLoop = double(int64_t rounds);
ProductLoop products_plain;       // f32 multiply, then add, in whatever registers the base architecture has
ProductLoop products_avx2;        // f32 FMA
ProductLoop products_avx512;      // f32 FMA
ProductLoop products_avx512bf16;  // dot products of bf16 pairs summed in f32
ProductLoop products_amx;         // bf16 tile products summed in f32
ProductLoop bytes_avx2;           // products of bytes, pairs of which are added up in 16 bits
ProductLoop bytes_avxvnni;        // dot products of four bytes summed in 32-bit integers
ProductLoop bytes_avx512vnni;     // the same
ProductLoop bytes_amx;            // tile products of bytes summed in 32-bit integers

// Reads `bytes` bytes (a multiple of 1024) from a 64-byte aligned address and returns a value that depends on all of
// them, so that no read can be left out.
using ReadLoop = uint64_t(const std::byte* data, size_t bytes);
ReadLoop read_plain;
ReadLoop read_avx2;
ReadLoop read_avx512;

}  // namespace quire::bench
