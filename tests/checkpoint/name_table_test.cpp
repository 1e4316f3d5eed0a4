// SPDX-License-Identifier: Apache-2.0
// The name table against a map of the standard library.
#include "checkpoint/name_table.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace moxie {
namespace {

TEST(NameTable, FindsWhatWasAddedAndNothingElse) {
  std::vector<std::string> names;
  std::map<std::string, std::uint32_t> expected;
  NameTable table;
  const auto name_of = [&](std::uint32_t i) -> std::string_view { return names[i]; };
  EXPECT_EQ(table.find("", name_of), std::nullopt);
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) {
    const std::string name = "layers." + std::to_string(random() % 3000);
    const auto position = static_cast<std::uint32_t>(names.size());
    const auto there = table.add(name, position, name_of);
    const auto [entry, fresh] = expected.try_emplace(name, position);
    ASSERT_EQ(there, fresh ? std::nullopt : std::optional(entry->second));
    if (fresh) names.push_back(name);
  }
  for (int i = 0; i < 4000; ++i) {
    const std::string name = "layers." + std::to_string(i);
    const auto entry = expected.find(name);
    EXPECT_EQ(table.find(name, name_of),
              entry == expected.end() ? std::nullopt : std::optional(entry->second));
  }
}

TEST(NameTable, TellsNamesWithEqualBeginningsApart) {
  const std::vector<std::string> names = {"", "a", "aa", std::string("a\0", 2),
                                          std::string(1000, 'a')};
  NameTable table;
  const auto name_of = [&](std::uint32_t i) -> std::string_view { return names[i]; };
  for (std::uint32_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(table.add(names[i], i, name_of), std::nullopt);
  table.reserve(1000);
  for (std::uint32_t i = 0; i < names.size(); ++i) EXPECT_EQ(table.find(names[i], name_of), i);
}

}  // namespace
}  // namespace moxie
