// SPDX-License-Identifier: Apache-2.0
// Structs that begin with their size: fields are only ever added at the end, so that a caller built
// against an older header passes a shorter one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "capi/refusal.hpp"

namespace moxie::capi {

// kName, and kSizes: the sizes that the struct has had, ascending; the last is today's.
template <class Struct>
struct Versions;

template <>
struct Versions<moxie_model_info> {
  static constexpr std::string_view kName = "moxie_model_info";
  static constexpr std::uint32_t kSizes[] = {48};
};
template <>
struct Versions<moxie_plan_options> {
  static constexpr std::string_view kName = "moxie_plan_options";
  static constexpr std::uint32_t kSizes[] = {64};
};
template <>
struct Versions<moxie_plan_info> {
  static constexpr std::string_view kName = "moxie_plan_info";
  static constexpr std::uint32_t kSizes[] = {40};
};
template <>
struct Versions<moxie_rank_info> {
  static constexpr std::string_view kName = "moxie_rank_info";
  static constexpr std::uint32_t kSizes[] = {40};
};
template <>
struct Versions<moxie_prepare_options> {
  static constexpr std::string_view kName = "moxie_prepare_options";
  static constexpr std::uint32_t kSizes[] = {32};
};
template <>
struct Versions<moxie_forward_args> {
  static constexpr std::string_view kName = "moxie_forward_args";
  static constexpr std::uint32_t kSizes[] = {104};
};
template <>
struct Versions<moxie_rows_args> {
  static constexpr std::string_view kName = "moxie_rows_args";
  static constexpr std::uint32_t kSizes[] = {112, 144};
};

// Error(usage) MOXIE-A002 unless the size is one of them.
inline void require_known_size(std::uint32_t size, std::span<const std::uint32_t> known,
                               std::string_view name) {
  if (std::ranges::find(known, size) != known.end()) return;
  refuse("MOXIE-A002", "struct_size is of no version of " + std::string(name),
         std::to_string(known.back()), std::to_string(size),
         size > known.back() ? "the program was built against a newer moxie.h than this library"
                             : "set it to sizeof(" + std::string(name) + ")");
}

// The size that the caller states, which is known.
template <class Struct>
std::uint32_t stated_size(const Struct* given) {
  using Known = Versions<Struct>;
  static_assert(std::is_trivially_copyable_v<Struct> && std::is_standard_layout_v<Struct>);
  static_assert(*(std::end(Known::kSizes) - 1) == sizeof(Struct),
                "a struct that grew is a new version; its older sizes stay known");
  require_pointer(given, Known::kName);
  std::uint32_t size = 0;
  std::memcpy(&size, given, sizeof size);
  require_known_size(size, Known::kSizes, Known::kName);
  return size;
}

// Today's struct; what an older caller does not have is 0.
template <class Struct>
Struct read_struct(const Struct* given) {
  Struct read{};
  std::memcpy(&read, given, stated_size(given));
  return read;
}

// Writes as much as the caller has.
template <class Struct>
void write_struct(Struct* to, Struct values) {
  values.struct_size = stated_size(to);
  std::memcpy(to, &values, values.struct_size);
}

}  // namespace moxie::capi
