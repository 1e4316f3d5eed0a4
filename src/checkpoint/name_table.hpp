// SPDX-License-Identifier: Apache-2.0
// Finds the elements of a list by name without keeping the names a second time.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

namespace moxie {

// Open addressing over positions in a list that only grows. `name_of(position)` gives the name at a
// position; it is passed to each call because the list may move between calls.
class NameTable {
 public:
  // Room for `count` names without rehashing.
  void reserve(std::size_t count) {
    const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(count * 2, 16));
    if (wanted > slots_.size()) rehash(wanted);
  }

  template <class NameOf>
  [[nodiscard]] std::optional<std::uint32_t> find(std::string_view name,
                                                  const NameOf& name_of) const {
    if (slots_.empty()) return std::nullopt;
    const Slot& slot = slots_[place_of(name, hash_of(name), name_of)];
    return slot.used() ? std::optional(slot.position) : std::nullopt;
  }

  // Adds `name` at `position`. Returns the position of an equal name that is there already, and
  // then adds nothing.
  template <class NameOf>
  std::optional<std::uint32_t> add(std::string_view name, std::uint32_t position,
                                   const NameOf& name_of) {
    reserve(count_ + 1);
    const std::uint32_t hash = hash_of(name);
    Slot& slot = slots_[place_of(name, hash, name_of)];
    if (slot.used()) return slot.position;
    slot = {.hash = hash, .position = position};
    ++count_;
    return std::nullopt;
  }

 private:
  static constexpr std::uint32_t kNowhere = ~std::uint32_t{0};  // above any position in a list

  struct Slot {
    std::uint32_t hash = 0;
    std::uint32_t position = kNowhere;

    [[nodiscard]] bool used() const { return position != kNowhere; }
  };

  static std::uint32_t hash_of(std::string_view name) {
    return static_cast<std::uint32_t>(std::hash<std::string_view>()(name));
  }

  // Where the name is, or the free slot where it belongs. At most half of the slots are used.
  template <class NameOf>
  std::size_t place_of(std::string_view name, std::uint32_t hash, const NameOf& name_of) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t place = hash & mask;
    while (slots_[place].used() &&
           (slots_[place].hash != hash || name_of(slots_[place].position) != name)) {
      place = (place + 1) & mask;
    }
    return place;
  }

  void rehash(std::size_t size) {
    std::vector<Slot> old(size);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (!slot.used()) continue;
      std::size_t place = slot.hash & (size - 1);
      while (slots_[place].used()) place = (place + 1) & (size - 1);
      slots_[place] = slot;
    }
  }

  std::vector<Slot> slots_;  // a power of two
  std::size_t count_ = 0;
};

}  // namespace moxie
