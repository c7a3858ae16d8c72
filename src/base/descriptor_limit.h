// How many files and sockets this process may have open together.
#pragma once

namespace quire {

// Raises the limit to this count, or as far as the system lets it. Where that is not enough, the socket that is one too
// many says so.
void allow_descriptors(int count);

}  // namespace quire
