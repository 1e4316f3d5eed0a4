// SPDX-License-Identifier: Apache-2.0
// Where each expert's rows begin: one type per convention, because the arrays look alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/host_device.hpp"

namespace moxie {

// Compact rows are the slots of all experts back to back. Scale rows are the row indices inside a
// tiled scale buffer, where an expert starts at a multiple of 128 so that no tile has two owners.
// Example, counts [4, 0, 200, 1]:
//
//   OffsetsWith0            0   4   4 204 205    compact, experts + 1 entries
//   OffsetEnds              4   4 204 205        compact, experts entries
//   ScaleOffsetsExact       0 128 128 384 512    scale rows, prefix sum of rounded counts
//   ScaleOffsetsClosedForm  0 256 384 640 768    scale rows, each from its own compact offset
inline constexpr std::uint64_t kScaleTileRows = 128;

// First expert whose end is above `row`: an upper bound, which also steps over empty experts.
// Returns `experts` for a row past the last end.
template <class Row>
MOXIE_HD constexpr std::uint64_t expert_of_row(const Row* ends,  // [experts]
                                               std::uint64_t experts, Row row) {
  std::uint64_t first = 0;
  std::uint64_t count = experts;
  while (count > 0) {
    const std::uint64_t half = count / 2;
    if (ends[first + half] <= row) {
      first += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return first;
}

// Scale rows that hold `slots` rows over `experts` experts under exact padding, whatever the
// distribution: each expert that has a row wastes at most 127, and the sum is a multiple of 128.
// The bound is reached (47 experts with one row and one with 49105 need all 55168), so neither
// `slots` nor 128 rows per expert is enough.
MOXIE_HD constexpr std::uint64_t rows_max(std::uint64_t slots, std::uint64_t experts) {
  const std::uint64_t used = experts < slots ? experts : slots;
  return (slots + (kScaleTileRows - 1) * used) / kScaleTileRows * kScaleTileRows;
}

// First scale row of `expert`, whose first compact row is `first_row`. Leaves every expert at least
// its rounded count: the two terms grow by count + 127 from one expert to the next.
MOXIE_HD constexpr std::uint64_t closed_form_scale_row(std::uint64_t first_row,
                                                       std::uint64_t expert) {
  const std::uint64_t bound = first_row + (kScaleTileRows - 1) * expert;
  return (bound + kScaleTileRows - 1) / kScaleTileRows * kScaleTileRows;
}

// Compact offsets with a leading 0: expert i owns rows [first(i), first(i + 1)).
class OffsetsWith0 {
 public:
  // Takes an array made elsewhere. Throws std::invalid_argument unless it has experts + 1 entries,
  // starts with 0 and never decreases.
  OffsetsWith0(std::vector<std::uint64_t> offsets, std::size_t experts)
      : offsets_(std::move(offsets)) {
    if (offsets_.size() != experts + 1) {
      throw std::invalid_argument("offsets with a leading 0 have one entry more than experts");
    }
    if (offsets_.front() != 0) throw std::invalid_argument("the first offset is not 0");
    for (std::size_t i = 0; i < experts; ++i) {
      if (offsets_[i + 1] < offsets_[i]) throw std::invalid_argument("the offsets decrease");
    }
  }

  static OffsetsWith0 from_counts(const std::vector<std::uint64_t>& counts) {
    std::vector<std::uint64_t> offsets(counts.size() + 1, 0);
    for (std::size_t i = 0; i < counts.size(); ++i) offsets[i + 1] = offsets[i] + counts[i];
    return OffsetsWith0(std::move(offsets), counts.size());
  }

  std::size_t experts() const { return offsets_.size() - 1; }
  std::uint64_t rows() const { return offsets_.back(); }
  std::uint64_t first(std::size_t expert) const { return offsets_[expert]; }
  std::uint64_t count(std::size_t expert) const { return offsets_[expert + 1] - offsets_[expert]; }
  const std::vector<std::uint64_t>& values() const { return offsets_; }  // [experts + 1]

  // Returns experts() for a row past the last.
  std::size_t expert_of(std::uint64_t row) const {
    return expert_of_row(offsets_.data() + 1, experts(), row);
  }

  // Rows a buffer needs for any distribution of `slots`.
  static constexpr std::uint64_t capacity_rows(std::uint64_t slots, std::uint64_t /*experts*/) {
    return slots;
  }

 private:
  std::vector<std::uint64_t> offsets_;
};

// Compact offsets as ends only: expert i owns rows [i == 0 ? 0 : end(i - 1), end(i)).
class OffsetEnds {
 public:
  // Takes an array made elsewhere. Throws std::invalid_argument unless it has one entry per expert
  // and never decreases; the length is what tells it from an array with a leading 0.
  OffsetEnds(std::vector<std::uint64_t> ends, std::size_t experts) : ends_(std::move(ends)) {
    if (ends_.size() != experts) {
      throw std::invalid_argument("offsets as ends have exactly one entry per expert");
    }
    for (std::size_t i = 1; i < experts; ++i) {
      if (ends_[i] < ends_[i - 1]) throw std::invalid_argument("the offsets decrease");
    }
  }

  explicit OffsetEnds(const OffsetsWith0& offsets)
      : ends_(offsets.values().begin() + 1, offsets.values().end()) {}

  static OffsetEnds from_counts(const std::vector<std::uint64_t>& counts) {
    return OffsetEnds(OffsetsWith0::from_counts(counts));
  }

  std::size_t experts() const { return ends_.size(); }
  std::uint64_t rows() const { return ends_.empty() ? 0 : ends_.back(); }
  std::uint64_t first(std::size_t expert) const { return expert == 0 ? 0 : ends_[expert - 1]; }
  std::uint64_t count(std::size_t expert) const { return ends_[expert] - first(expert); }
  const std::vector<std::uint64_t>& values() const { return ends_; }  // [experts]

  // Returns experts() for a row past the last.
  std::size_t expert_of(std::uint64_t row) const {
    return expert_of_row(ends_.data(), experts(), row);
  }

  // Rows a buffer needs for any distribution of `slots`.
  static constexpr std::uint64_t capacity_rows(std::uint64_t slots, std::uint64_t /*experts*/) {
    return slots;
  }

 private:
  std::vector<std::uint64_t> ends_;
};

// Scale-row offsets as a prefix sum of counts rounded up to 128.
class ScaleOffsetsExact {
 public:
  explicit ScaleOffsetsExact(const OffsetsWith0& offsets) : scale_rows_(offsets.experts() + 1, 0) {
    for (std::size_t i = 0; i < offsets.experts(); ++i) {
      const std::uint64_t tiles = (offsets.count(i) + kScaleTileRows - 1) / kScaleTileRows;
      scale_rows_[i + 1] = scale_rows_[i] + tiles * kScaleTileRows;
    }
  }

  std::size_t experts() const { return scale_rows_.size() - 1; }
  std::uint64_t rows() const { return scale_rows_.back(); }
  std::uint64_t first(std::size_t expert) const { return scale_rows_[expert]; }
  const std::vector<std::uint64_t>& values() const { return scale_rows_; }  // [experts + 1]

  static constexpr std::uint64_t capacity_rows(std::uint64_t slots, std::uint64_t experts) {
    return rows_max(slots, experts);
  }

 private:
  std::vector<std::uint64_t> scale_rows_;
};

// Scale-row offsets that each device thread computes alone from its expert's compact offset.
class ScaleOffsetsClosedForm {
 public:
  explicit ScaleOffsetsClosedForm(const OffsetsWith0& offsets) : scale_rows_(offsets.values()) {
    for (std::size_t i = 0; i < scale_rows_.size(); ++i) {
      scale_rows_[i] = closed_form_scale_row(scale_rows_[i], i);
    }
  }

  std::size_t experts() const { return scale_rows_.size() - 1; }
  std::uint64_t rows() const { return scale_rows_.back(); }
  std::uint64_t first(std::size_t expert) const { return scale_rows_[expert]; }
  const std::vector<std::uint64_t>& values() const { return scale_rows_; }  // [experts + 1]

  static constexpr std::uint64_t capacity_rows(std::uint64_t slots, std::uint64_t experts) {
    return closed_form_scale_row(slots, experts);
  }

 private:
  std::vector<std::uint64_t> scale_rows_;
};

// Scale row of a compact row that belongs to `expert`.
template <class ScaleOffsets>
std::uint64_t scale_row_of(const ScaleOffsets& scale_offsets, const OffsetsWith0& offsets,
                           std::size_t expert, std::uint64_t row) {
  return scale_offsets.first(expert) + (row - offsets.first(expert));
}

}  // namespace moxie
