// SPDX-License-Identifier: Apache-2.0
// pit81: sizes come from the config record, so that no model's numbers stand in host logic.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

namespace moxie {
namespace {

namespace fs = std::filesystem;

// Removes comments and the contents of strings of one line.
std::string code_of_line(std::string line) {
  line = std::regex_replace(line, std::regex(R"("(\\.|[^"\\])*")"), "\"\"");
  return line.substr(0, line.find("//"));
}

bool has_model_size(const std::string& line) {
  // Decimal with or without digit separators and suffix, or hexadecimal.
  static const std::regex kSizes(R"((^|[^\w.'])(256|384|6'?144|2'?048|4'?096|7'?168|)"
                                 R"(0x(100|180|1800|800|1000|1C00))[uUlLzZ]*($|[^\w.']))",
                                 std::regex::icase);
  return std::regex_search(code_of_line(line), kSizes);
}

// Numbers that are no model's size, with the reason.
struct Allowed {
  const char* file;
  const char* text;
};
constexpr Allowed kAllowed[] = {
    {"pack/scale_check.cpp", "kBlock = 256"},  // bytes looked at per step, for speed only
    {"catalog/catalog.cpp",
     ".lanes = 8, .block = 256"},  // how a kernel adds up, whatever the sizes
    {"catalog/catalog.cpp", ".lanes = 1, .block = 256"},
    {"pack/page_budget.hpp", "{256} << 20"},  // bytes of files' pages
};

bool is_allowed(const std::string& file, const std::string& line) {
  return std::ranges::any_of(kAllowed, [&](const Allowed& allowed) {
    return file == allowed.file && line.find(allowed.text) != std::string::npos;
  });
}

TEST(HostLiterals, NoModelSizeStandsInHostLogic) {  // pit81, C15
  const fs::path root = fs::path(MOXIE_SOURCE_DIR) / "src";
  std::size_t files = 0;
  for (const char* folder : {"catalog", "model", "pack", "plan", "verify"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      if (entry.path().extension() != ".cpp" && entry.path().extension() != ".hpp") continue;
      ++files;
      const std::string name = fs::relative(entry.path(), root).string();
      std::ifstream file(entry.path());
      std::size_t number = 0;
      for (std::string line; std::getline(file, line);) {
        ++number;
        EXPECT_TRUE(!has_model_size(line) || is_allowed(name, line))
            << name << ":" << number << ": " << line;
      }
    }
  }
  EXPECT_GE(files, 15U);
}

TEST(HostLiterals, TheSearchFindsWhatItLooksFor) {
  for (const char* line : {"if (experts == 256) {", "x = 384;", "const auto n = 128 * 6144ULL;",
                           "return 4'096 / tp;", "7168", "rows(0x800)", "a[2048u]"}) {
    EXPECT_TRUE(has_model_size(line)) << line;
  }
  for (const char* line : {"// like 256 experts", "f(\"4096 bytes\");", "uint256 x;", "k2048 = 1;",
                           "12560", "0x1000000", "1 << 12", "v2.256f", "1'256"}) {
    EXPECT_FALSE(has_model_size(line)) << line;
  }
}

}  // namespace
}  // namespace moxie
