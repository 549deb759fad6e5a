// SPDX-License-Identifier: Apache-2.0
//
// Sentences, and the text of kernels that are compiled at run time, are the same in every locale.
#include <gtest/gtest.h>

#include <locale>
#include <string>

#include "core/error.h"

namespace fa3 {
namespace {

// As de_DE writes numbers, on machines that have no such locale too.
struct Grouping : std::numpunct<char> {
  char do_thousands_sep() const override { return '.'; }
  char do_decimal_point() const override { return ','; }
  std::string do_grouping() const override { return "\3"; }
};

TEST(Concat, writes_numbers_the_same_in_every_locale) {
  const std::locale before = std::locale::global(std::locale(std::locale::classic(), new Grouping));
  const std::string text = concat(1278, " of ", 2944u, " at ", 0.5);
  std::locale::global(before);
  EXPECT_EQ(text, "1278 of 2944 at 0.5");
}

}  // namespace
}  // namespace fa3
