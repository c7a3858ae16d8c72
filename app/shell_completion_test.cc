#include "shell_completion.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "base/testing/temporary_folder.h"
#include "testing_program.h"

namespace quire {
namespace {

// What bash offers when Tab is typed behind these words.
std::string offered(const std::string& words) {
  const TestProgram program;
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/script";
  std::ofstream(path) << bash_completion(program.app) << "COMP_WORDS=(" << words << ")\n"
                      << "COMP_CWORD=$((${#COMP_WORDS[@]} - 1))\n_quire\necho \"${COMPREPLY[*]}\"\n";
  FILE* shell = popen(("bash " + path + " 2>&1").c_str(), "r");
  std::array<char, 4096> answer{};
  const size_t size = fread(answer.data(), 1, answer.size(), shell);
  EXPECT_EQ(pclose(shell), 0);
  return std::string(answer.data(), size);
}

TEST(BashCompletion, KnowsCommandsOptionsAndChoices) {
  EXPECT_EQ(offered("quire se"), "serve\n");
  EXPECT_EQ(offered("quire bench ''"), "matmul serving -h --help\n");
  EXPECT_EQ(offered("quire serve --th"), "--threads\n");
  EXPECT_EQ(offered("quire serve --kind ''"), "bf16 f32\n");
  EXPECT_EQ(offered("quire bench serving ''"), "small large -h --help\n");
  EXPECT_EQ(offered("quire bench serving l"), "large\n");
  EXPECT_EQ(offered("quire serve --port ''"), "\n");  // anything; bash then offers files
  EXPECT_EQ(offered("quire bench matmul serve --th"), "\n");
}

TEST(OtherCompletions, HaveEveryCommandAndQuoteWhatShellsWouldRead) {
  const TestProgram program;
  const std::string zsh = zsh_completion(program.app), fish = fish_completion(program.app);
  for (const char* part : {"#compdef quire\n", "'*--kind[of the values]:TEXT:(bf16 f32)'", "bench) _quire_bench ;;",
                           "_quire_bench_matmul() {", "'*--threads[0\\: all cores]:N:_files'", "'*:TEXT:(small large)'",
                           "serve\\:\"serve a model'\\''s answers\""})
    EXPECT_NE(zsh.find(part), zsh.npos) << part << "\nis not in\n" << zsh;
  for (const char* part : {"-n '__fish_use_subcommand' -f -a serve -d 'serve a model'\\''s answers'\n",
                           "-n '__fish_seen_subcommand_from serve' -l kind -d 'of the values' -r -f -a 'bf16 f32'\n",
                           "-n '__fish_seen_subcommand_from bench' -f -a matmul", " -f -a 'small large'\n"})
    EXPECT_NE(fish.find(part), fish.npos) << part << "\nis not in\n" << fish;
}

}  // namespace
}  // namespace quire
