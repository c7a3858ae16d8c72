// The manual page of the program, made from the command line itself, so that the two cannot drift apart.
#pragma once
#include <string>

namespace CLI {
class App;
}

namespace quire {

std::string man_page(const CLI::App& program, const std::string& version);  // roff, with the macros of man(7)

}  // namespace quire
