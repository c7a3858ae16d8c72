// `quire help [COMMAND]` and `quire version`; how help looks.
//
//   quire help                  the commands
//   quire help bench serving    what `quire bench serving --help` prints
//   quire help --man            the manual page, as roff
#pragma once

namespace CLI {
class App;
}

namespace quire {

// Before   no command has been added yet: those that follow take over its look.
void set_look_of_help(CLI::App& program);

// Adds the two commands. Throws UsageError for the help of a command that is not there.
void add_help(CLI::App& program);

}  // namespace quire
