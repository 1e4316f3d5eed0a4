// SPDX-License-Identifier: Apache-2.0
// A granule's exponents as a histogram; the window over it that holds the most groups.
#include <algorithm>
#include <array>
#include <cstdint>

#include "formats/ue8m0.hpp"
#include "moxie/quantize.hpp"
#include "quantize/source_rows.hpp"

namespace moxie {

namespace {

constexpr std::uint64_t kBlockRows = 128;
constexpr std::uint64_t kBlockGroups = 4;  // of 32 columns
constexpr std::uint8_t kScaleOfZeros = 0x00;

struct Region {
  std::uint64_t first_row = 0;
  std::uint64_t last_row = 0;
  std::uint64_t first_group = 0;
  std::uint64_t last_group = 0;  // both ends are behind the last
};

class Scales {
 public:
  Scales(const std::uint8_t* scales, std::uint64_t groups) : scales_(scales), groups_(groups) {}

  // Calls body(row, group, scale byte) for what is not zeros.
  template <class Body>
  void for_each(const Region& region, const Body& body) const {
    for (std::uint64_t row = region.first_row; row < region.last_row; ++row) {
      for (std::uint64_t group = region.first_group; group < region.last_group; ++group) {
        const std::uint8_t scale = scales_[row * groups_ + group];
        if (is_nan_e8m0(scale)) refuse_scale_byte(BlockFormat::mxfp4, row, group);
        if (scale != kScaleOfZeros) body(row, group, scale);
      }
    }
  }

 private:
  const std::uint8_t* scales_;  // [rows, groups]
  std::uint64_t groups_;
};

// The lowest and the highest scale byte of the groups that a window holds.
struct Held {
  int least = 0;
  int most = 0;
};

// The most groups that `width` neighbouring bytes hold; of several windows, the highest. One of the
// best ends at a byte that occurs.
Held best_window(const std::array<std::uint64_t, 256>& histogram, int width) {
  Held best;
  std::uint64_t most = 0;
  for (int top = 255; top > 0; --top) {
    if (histogram[static_cast<std::size_t>(top)] == 0) continue;
    Held held{top, top};
    std::uint64_t inside = 0;
    for (int byte = top; byte > 0 && byte > top - width; --byte) {
      const std::uint64_t groups = histogram[static_cast<std::size_t>(byte)];
      inside += groups;
      if (groups > 0) held.least = byte;
    }
    if (inside > most) {
      most = inside;
      best = held;
    }
  }
  return best;
}

void add_region(const Scales& scales, const Region& region, int width, LosslessReport& report) {
  std::array<std::uint64_t, 256> histogram{};
  scales.for_each(region, [&](std::uint64_t, std::uint64_t, std::uint8_t scale) {
    ++histogram[scale];
    ++report.groups;
  });
  const Held held = best_window(histogram, width);
  scales.for_each(region, [&](std::uint64_t row, std::uint64_t group, std::uint8_t scale) {
    // A group that a shift of the window would take in without losing another is held already.
    const int distance = std::max(scale - held.least, held.most - scale) - (width - 1);
    if (distance <= 0) return;
    ++report.outside;
    const bool is_earlier =
        row < report.worst_row || (row == report.worst_row && group < report.worst_group);
    if (distance > report.worst_distance || (distance == report.worst_distance && is_earlier)) {
      report.worst_distance = distance;
      report.worst_row = row;
      report.worst_group = group;
    }
  });
}

}  // namespace

ExponentRange exponents_of(Fp8Window window) {
  switch (window) {
    case Fp8Window::e4m3_normal:
      return {-5, 6};
    case Fp8Window::e4m3_exact:
      return {-8, 6};
    case Fp8Window::e5m2_normal:
      return {-13, 13};
    case Fp8Window::e5m2_exact:
      break;
  }
  return {-15, 13};
}

LosslessReport check_lossless(const std::uint8_t* scales, std::uint64_t rows, std::uint64_t groups,
                              Granule granule, Fp8Window window) {
  const ExponentRange range = exponents_of(window);
  const int width = range.most - range.least + 1;
  const std::uint64_t row_step = granule == Granule::row     ? 1
                                 : granule == Granule::block ? kBlockRows
                                                             : rows;
  const std::uint64_t group_step = granule == Granule::block ? kBlockGroups : groups;
  LosslessReport report;
  for (std::uint64_t row = 0; row < rows; row += row_step) {
    for (std::uint64_t group = 0; group < groups; group += group_step) {
      add_region(Scales(scales, groups),
                 {row, std::min(row + row_step, rows), group, std::min(group + group_step, groups)},
                 width, report);
    }
  }
  return report;
}

}  // namespace moxie
