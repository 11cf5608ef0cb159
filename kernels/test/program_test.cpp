#include <gtest/gtest.h>

#include "millrace_kernels.h"
TEST(Backend, NamesItself) {
  EXPECT_STREQ(millrace_backend_ref()->name, "ref");
  EXPECT_STREQ(millrace_backend_cpu()->name, "cpu");
}
