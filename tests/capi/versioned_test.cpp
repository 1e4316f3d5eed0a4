// SPDX-License-Identifier: Apache-2.0
// A struct of three versions: older ones are taken, and what they lack is 0.
#include "capi/versioned.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <system_error>

#include "support/refusal.hpp"

namespace moxie {
namespace {

struct Grown {
  std::uint32_t struct_size;
  std::uint32_t first;
  std::uint64_t second;  // since version 2
  std::uint64_t third;   // since version 3
};

}  // namespace

template <>
struct capi::Versions<Grown> {
  static constexpr std::string_view kName = "Grown";
  static constexpr std::uint32_t kSizes[] = {8, 16, 24};
};

namespace {

TEST(VersionedStructs, OlderOnesAreReadAndWhatTheyLackIsZero) {
  Grown given{.struct_size = 8, .first = 1, .second = 2, .third = 3};
  EXPECT_EQ(capi::read_struct(&given).first, 1U);
  EXPECT_EQ(capi::read_struct(&given).second, 0U) << "behind what the caller has";
  given.struct_size = 16;
  EXPECT_EQ(capi::read_struct(&given).second, 2U);
  EXPECT_EQ(capi::read_struct(&given).third, 0U);
  given.struct_size = 24;
  EXPECT_EQ(capi::read_struct(&given).third, 3U);
}

TEST(VersionedStructs, AnOlderCallersMemoryIsWrittenAsFarAsItGoes) {
  Grown given{.struct_size = 16, .first = 0, .second = 0, .third = 77};
  capi::write_struct(&given, {.struct_size = 0, .first = 1, .second = 2, .third = 3});
  EXPECT_EQ(given.struct_size, 16U);
  EXPECT_EQ(given.first, 1U);
  EXPECT_EQ(given.second, 2U);
  EXPECT_EQ(given.third, 77U);
}

TEST(VersionedStructs, SizesBetweenVersionsAndBeyondAreRefused) {
  for (const std::uint32_t size : {0U, 4U, 12U, 20U, 25U, 32U}) {
    const Grown given{.struct_size = size, .first = 0, .second = 0, .third = 0};
    test::expect_refusal([&] { (void)capi::read_struct(&given); }, ErrorCode::usage, "MOXIE-A002");
  }
  test::expect_refusal([] { (void)capi::read_struct<Grown>(nullptr); }, ErrorCode::usage,
                       "MOXIE-A001");
}

TEST(CAbi, EveryExceptionBecomesAStatusAndAText) {
  const auto status = [](auto exception) { return capi::guarded([&] { throw exception; }); };
  EXPECT_EQ(status(std::bad_alloc()), MOXIE_STATUS_ENVIRONMENT);
  EXPECT_EQ(std::string(moxie_last_error()), "MOXIE-E003 error: out of memory");
  EXPECT_EQ(status(std::system_error(std::make_error_code(std::errc::io_error))),
            MOXIE_STATUS_ENVIRONMENT);
  EXPECT_EQ(std::string(moxie_last_error()).substr(0, 10), "MOXIE-E001");
  EXPECT_EQ(status(std::logic_error("odd")), MOXIE_STATUS_INTERNAL);
  EXPECT_EQ(std::string(moxie_last_error()),
            "MOXIE-U070 error: odd; this is a bug in moxie; please report it");
  EXPECT_EQ(status(Error::of(ErrorCode::verdict, {{.code = "first", .message = "a"},
                                                  {.code = "second", .message = "b"}})),
            MOXIE_STATUS_VERDICT);
  EXPECT_EQ(std::string(moxie_last_error()), "first error: a\nsecond error: b");
}

}  // namespace
}  // namespace moxie
