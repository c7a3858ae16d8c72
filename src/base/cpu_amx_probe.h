// The proof that AMX works here: one product of full bf16 tiles, compared with the exact result.
#pragma once

namespace quire {

// Call only after the kernel has granted the tile state; without it the first tile instruction is fatal.
bool amx_product_is_right();

}  // namespace quire
