#include "http/mailbox.h"

#include <gtest/gtest.h>

namespace quire::http {
namespace {

TEST(Mailbox, CallsOnceForAllThatGathers) {
  Mailbox box;
  EXPECT_TRUE(box.send("a"));
  EXPECT_FALSE(box.send("b"));
  EXPECT_FALSE(box.finish(false));
  const Mailbox::Mail mail = box.take();
  EXPECT_EQ(mail.bytes.front(), "ab");
  EXPECT_TRUE(mail.finished);
  EXPECT_FALSE(mail.keep_alive);
  EXPECT_FALSE(mail.cut);
}

TEST(Mailbox, IsEmptyAndCallsAgainOnceTaken) {
  Mailbox box;
  EXPECT_TRUE(box.cut());
  EXPECT_TRUE(box.take().cut);
  EXPECT_TRUE(box.send("c"));
  const Mailbox::Mail mail = box.take();
  EXPECT_EQ(mail.bytes.front(), "c");
  EXPECT_FALSE(mail.cut);
  EXPECT_FALSE(mail.finished);
}

TEST(Mailbox, DropsEverythingOnceClosed) {
  Mailbox box;
  EXPECT_TRUE(box.send("a"));
  box.close();
  EXPECT_FALSE(box.send("b"));
  EXPECT_FALSE(box.finish(true));
  EXPECT_TRUE(box.take().bytes.empty());
}

}  // namespace
}  // namespace quire::http
