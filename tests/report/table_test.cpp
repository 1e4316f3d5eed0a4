// SPDX-License-Identifier: Apache-2.0
// Tables as text and as markdown.
#include <gtest/gtest.h>

#include "moxie/report.hpp"

namespace moxie {
namespace {

TEST(Table, AlignsNumbersToTheRightAndTextToTheLeft) {
  Table table({"rank", "tensor", "bytes", "share"});
  table.add_row({"0", "gate", "13.4 MB", "33.3 %"});
  table.add_row({"10", "up_scale", "352 B", "-"});
  EXPECT_EQ(table.to_text(),
            "rank  tensor      bytes   share\n"
            "----  --------  -------  ------\n"
            "   0  gate      13.4 MB  33.3 %\n"
            "  10  up_scale    352 B       -\n");
}

TEST(Table, OneTextCellKeepsAColumnToTheLeft) {
  Table table({"value"});
  table.add_row({"12"});
  table.add_row({"none"});
  table.add_row({"2 of 3"});
  EXPECT_EQ(table.to_text(), "value\n------\n12\nnone\n2 of 3\n");
}

TEST(Table, CountsCharactersAndNotBytes) {
  Table table({"name", "x"});
  table.add_row({"tp×ep", "a"});
  EXPECT_EQ(table.to_text(), "name   x\n-----  -\ntp×ep  a\n");
}

TEST(Table, WithoutRowsShowsItsHead) { EXPECT_EQ(Table({"a", "bc"}).to_text(), "a  bc\n-  --\n"); }

TEST(Table, MarkdownMarksNumberColumnsAndEscapesBars) {
  Table table({"name", "rows"});
  table.add_row({"gate|up", "2,048"});
  EXPECT_EQ(table.to_markdown(),
            "| name | rows |\n"
            "|---|---:|\n"
            "| gate\\|up | 2,048 |\n");
}

TEST(Table, RefusesARowOfAnotherWidth) {
  Table table({"a", "b"});
  EXPECT_THROW(table.add_row({"1"}), Error);
}

}  // namespace
}  // namespace moxie
