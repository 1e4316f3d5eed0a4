// SPDX-License-Identifier: Apache-2.0
// The text of findings and errors: what, where, expected, got, what to do.
#include "moxie/status.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <vector>

#include "base/errors.hpp"
#include "support/refusal.hpp"

namespace moxie {
namespace {

Finding full_finding() {
  return {.code = "MOXIE-P014",
          .severity = Severity::warning,
          .message = "no kernel for this width",
          .where = {.file = "model.safetensors",
                    .tensor = "w1",
                    .layer = 3,
                    .expert = 7,
                    .rank = 1,
                    .axis = "hidden"},
          .expected = "a multiple of 128",
          .got = "2880",
          .hint = "use --target cpu"};
}

TEST(Status, AFindingSaysWhatWhereExpectedGotAndWhatToDoInThisOrder) {
  const std::string text = to_string(full_finding());
  std::size_t at = 0;
  for (const char* part : {"MOXIE-P014", "warning", "no kernel for this width", "a multiple of 128",
                           "2880", "--target cpu"}) {
    const std::size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in order in: " << text;
    at = found;
  }
  for (const char* part : {"layer 3", "expert 7", "rank 1", "hidden", "w1", "model.safetensors"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Status, AFindingLeavesOutWhatItDoesNotKnow) {
  EXPECT_EQ(to_string(Finding{.code = "MOXIE-C001", .message = "no such file"}),
            "MOXIE-C001 error: no such file");
  const std::string text =
      to_string(Finding{.code = "MOXIE-C001", .message = "m", .where = {.layer = 0, .rank = 0}});
  EXPECT_NE(text.find("layer 0"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 0"), std::string::npos) << text;
  EXPECT_EQ(text.find("expert"), std::string::npos) << text;
  EXPECT_EQ(text.find("expected"), std::string::npos) << text;
  EXPECT_EQ(text.find("got"), std::string::npos) << text;
}

TEST(Status, AnErrorShowsItsFirstFindingAndCarriesAll) {
  Finding second = full_finding();
  second.code = "MOXIE-P013";
  const Error error = Error::of(ErrorCode::unsupported, {full_finding(), second});
  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_EQ(error.what(), to_string(full_finding()));
  ASSERT_EQ(error.findings().size(), 2U);
  EXPECT_EQ(error.findings()[1].code, "MOXIE-P013");
}

TEST(Status, AnErrorWithoutFindingsIsABug) {
  const Error error = test::refusal_of([] { Error::of(ErrorCode::input, {}); });
  EXPECT_EQ(error.code(), ErrorCode::internal);
}

TEST(Status,
     ErrorCodesAreTheExitCodes) {  // C-01: non-zero, and distinct from "the comparison failed"
  const std::vector<int> codes = {
      static_cast<int>(ErrorCode::verdict),     static_cast<int>(ErrorCode::usage),
      static_cast<int>(ErrorCode::input),       static_cast<int>(ErrorCode::unsupported),
      static_cast<int>(ErrorCode::environment), static_cast<int>(ErrorCode::internal),
      static_cast<int>(ErrorCode::interrupted)};
  EXPECT_EQ(codes, (std::vector<int>{1, 2, 3, 4, 5, 70, 130}));
}

TEST(Status, ASystemErrorCarriesTheCallThePathAndTheSystemsText) {
  const Error error = test::refusal_of([] { raise_system("open", "/no/such", ENOENT); });
  EXPECT_EQ(error.code(), ErrorCode::environment);
  const std::string text = error.what();
  for (const char* part : {"open", "/no/such", "No such file or directory"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
  }
}

TEST(Status, ProgressThatAnswersFalseStopsTheWork) {
  std::uint64_t seen = 0;
  report_progress({}, 1, 2);
  report_progress([&](std::uint64_t done, std::uint64_t) { return seen = done, true; }, 5, 9);
  EXPECT_EQ(seen, 5U);
  const Error error = test::refusal_of(
      [] { report_progress([](std::uint64_t, std::uint64_t) { return false; }, 1, 2); });
  EXPECT_EQ(error.code(), ErrorCode::interrupted);
}

}  // namespace
}  // namespace moxie
