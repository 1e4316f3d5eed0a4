// SPDX-License-Identifier: Apache-2.0
// Element types and lengths with units.
#include "moxie/types.hpp"

#include <gtest/gtest.h>

#include <concepts>
#include <cstdint>
#include <set>
#include <string>
#include <type_traits>

namespace moxie {
namespace {

TEST(Types, EveryElementTypeHasItsOwnNameAndAWidth) {
  std::set<std::string_view> names;
  for (int value = 0; value <= static_cast<int>(DType::c64); ++value) {
    const auto dtype = static_cast<DType>(value);
    EXPECT_TRUE(names.insert(name_of(dtype)).second) << name_of(dtype);
    EXPECT_GT(bits_of(dtype), 0U) << name_of(dtype);
  }
  EXPECT_EQ(name_of(DType::f8_e8m0), "F8_E8M0");
  EXPECT_EQ(name_of(DType::bf16), "BF16");
  EXPECT_EQ(bits_of(DType::f4), 4U);
  EXPECT_EQ(bits_of(DType::f6_e2m3), 6U);
  EXPECT_EQ(bits_of(DType::bf16), 16U);
  EXPECT_EQ(bits_of(DType::c64), 64U);
}

TEST(Types, ShapesPrintAsLists) {
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(to_string(Shape{2048, 128}), "[2048, 128]");
}

template <class A, class B>
concept Mixes =
    requires(A a, B b) { a + b; } || requires(A a, B b) { a == b; } || std::convertible_to<A, B>;

TEST(Types, LengthsOfDifferentUnitsDoNotMix) {
  static_assert(Mixes<Elems, Elems>);
  static_assert(!Mixes<Elems, PackedBytes>);
  static_assert(!Mixes<ScaleGroups, Elems>);
  static_assert(!Mixes<PackedBytes, ScaleGroups>);
  static_assert(!std::convertible_to<Elems, std::uint64_t>);
  static_assert(!std::convertible_to<std::uint64_t, Elems>);
  EXPECT_EQ((Elems(3) + Elems(4) * 2 - Elems(1)).value, 10U);
  EXPECT_LT(Elems(3), Elems(4));
}

}  // namespace
}  // namespace moxie
