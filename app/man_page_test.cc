#include "man_page.h"

#include <gtest/gtest.h>

#include "testing_program.h"

namespace quire {
namespace {

TEST(ManPage, HasEveryCommandWithItsOptions) {
  const TestProgram program;
  const std::string page = man_page(program.app, "quire 1.2");
  for (const char* part : {
           ".TH QUIRE 1 \"\" \"quire 1.2\"",
           "quire \\- a program\n",
           ".SS quire serve\nserve a model's answers\n",
           ".TP\n\\fB\\-t\\fR, \\fB\\-\\-threads\\fR \\fIN\\fR\n0: all cores; from 0 to 1024 (default: 0)\n",
           "of the values; one of bf16, f32\n",
           ".SS quire bench matmul\n",
           "\\fIFILE\\fR\n\\&.a file's name\n",  // a dot at the beginning of a line would be a request
           ".SH NOTES\n.nf\nQUIRE_MODEL",
       })
    EXPECT_NE(page.find(part), page.npos) << part << "\nis not in\n" << page;
  EXPECT_EQ(page.find(".SS quire bench\n"), page.npos) << "which does nothing by itself";
}

}  // namespace
}  // namespace quire
