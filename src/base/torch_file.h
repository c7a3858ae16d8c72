// The tensors of a file in which torch.save put a state dict: a stored zip (stored_zip.h) whose entry NAME/data.pkl is
// a pickle of the dict, and whose entries NAME/data/KEY are the bytes of its storages.
//
// A pickle is a program that builds values on a stack. Of its language only what torch.save writes for a dict, ordered
// or not, of tensors and parameters is understood: numbers, texts, tuples, dicts, storages, and calls of the three
// names that make dicts, tensors and parameters of them. Nothing is run by a name: any other is refused, and so is
// every other instruction. What it builds is a list of claims in an arena, whose size is limited, as are the memo and
// the depth; each claim is then held against its storage: what lies outside, is not contiguous or not little-endian is
// refused.
//
// Memory   data are views into the file.
// Errors   CheckError: what is wrong with the file, whose path the caller adds.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "base/file_tensor.h"

namespace quire {

std::vector<NamedTensor> read_torch_file(std::span<const std::byte> file);  // F32, F16, BF16, I64, I32, U8, BOOL

}  // namespace quire
