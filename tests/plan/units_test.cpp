// SPDX-License-Identifier: Apache-2.0
// pit70: lengths of different units neither add, compare, assign nor convert; what is written here
// does not compile if they do.
#include <gtest/gtest.h>

#include <concepts>
#include <type_traits>

#include "formats/block_format.hpp"
#include "moxie/plan.hpp"

namespace moxie {
namespace {

template <class A, class B>
concept Adds = requires(A a, B b) { a + b; };
template <class A, class B>
concept Subtracts = requires(A a, B b) { a - b; };
template <class A, class B>
concept Accumulates = requires(A a, B b) { a += b; };
template <class A, class B>
concept Compares = requires(A a, B b) { a < b; } || requires(A a, B b) { a == b; };
template <class A, class B>
concept Multiplies = requires(A a, B b) { a* b; };
template <class A, class B>
concept Mixes =
    Adds<A, B> || Subtracts<A, B> || Accumulates<A, B> || Compares<A, B> || Multiplies<A, B> ||
    std::convertible_to<A, B> || std::constructible_from<B, A> || std::is_assignable_v<B&, A>;

static_assert(!Mixes<Elems, PackedBytes> && !Mixes<PackedBytes, Elems>);
static_assert(!Mixes<Elems, ScaleGroups> && !Mixes<ScaleGroups, Elems>);
static_assert(!Mixes<PackedBytes, ScaleGroups> && !Mixes<ScaleGroups, PackedBytes>);

// A plain number becomes a length only by name, and a length becomes a number only through `value`.
static_assert(!std::convertible_to<std::uint64_t, Elems>);
static_assert(!std::convertible_to<Elems, std::uint64_t>);
static_assert(!Adds<Elems, std::uint64_t> && !Compares<Elems, std::uint64_t>);
static_assert(!Multiplies<Elems, Elems>);

// The concepts are not vacuous: one unit mixes with itself.
static_assert(Adds<Elems, Elems> && Subtracts<Elems, Elems> && Accumulates<Elems, Elems> &&
              Compares<Elems, Elems> && Multiplies<Elems, std::uint64_t>);

// A range in one unit is not one in another, and a tensor's member has its unit.
static_assert(!std::convertible_to<UnitRange<Elems>, UnitRange<PackedBytes>>);
static_assert(!std::is_assignable_v<UnitRange<PackedBytes>&, UnitRange<ScaleGroups>>);
static_assert(std::same_as<decltype(InterSlice::rows), UnitRange<Elems>>);
static_assert(std::same_as<decltype(InterSlice::bytes), UnitRange<PackedBytes>>);
static_assert(std::same_as<decltype(InterSlice::groups), UnitRange<ScaleGroups>>);
static_assert(std::same_as<decltype(AxisPlan::local), Elems>);

// The one way from unit to unit takes elements and gives the other.
static_assert(std::same_as<decltype(to_packed_bytes(Elems{2})), PackedBytes>);
static_assert(!std::invocable<decltype([](auto x) -> decltype(to_packed_bytes(x)) {
                                return to_packed_bytes(x);
                              }),
                              ScaleGroups>);

TEST(Units, DoNotMix) { SUCCEED() << "proved while compiling"; }

}  // namespace
}  // namespace moxie
