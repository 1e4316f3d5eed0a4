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

// The lowest and highest scale byte of a region that is not zeros, and how many groups there are.
struct Span {
  std::uint8_t least = 255;
  std::uint8_t most = 0;
  std::uint64_t groups = 0;
};

Span span_of(const std::uint8_t* scales, std::uint64_t stride, const Region& region) {
  Span span;
  for (std::uint64_t row = region.first_row; row < region.last_row; ++row) {
    const std::uint8_t* at = scales + row * stride;
    std::uint8_t least = 255;
    std::uint8_t most = 0;
    std::uint64_t zeros = 0;
    for (std::uint64_t group = region.first_group; group < region.last_group; ++group) {
      // One less than the byte, so that zeros do not count as the least.
      const auto below = static_cast<std::uint8_t>(at[group] - 1);
      least = std::min(least, below);
      most = std::max(most, at[group]);
      zeros += at[group] == kScaleOfZeros ? 1 : 0;
    }
    span.least = std::min(span.least, least);
    span.most = std::max(span.most, most);
    span.groups += region.last_group - region.first_group - zeros;
  }
  span.least = static_cast<std::uint8_t>(span.least + 1);
  return span;
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

int width_of(ExactWindow window) {
  const ExponentRange range = exponents_of(window);
  return range.most - range.least + 1;
}

}  // namespace

ExponentRange exponents_of(ExactWindow window) {
  switch (window) {
    case ExactWindow::e4m3_normal:
      return {-5, 6};
    case ExactWindow::e4m3_exact:
      return {-8, 6};
    case ExactWindow::e5m2_normal:
      return {-13, 13};
    case ExactWindow::e5m2_exact:
      return {-15, 13};
    case ExactWindow::f16_exact:
      break;
  }
  return {-23, 13};
}

std::string_view name_of(ExactWindow window) {
  constexpr std::array<std::string_view, kExactWindows> kNames = {
      "e4m3_normal", "e4m3_exact", "e5m2_normal", "e5m2_exact", "f16_exact"};
  return kNames[static_cast<std::size_t>(window)];
}

std::string_view name_of(Granule granule) {
  return granule == Granule::row ? "row" : granule == Granule::block ? "block" : "expert";
}

std::array<LosslessReport, kExactWindows> check_lossless(const std::uint8_t* scales,
                                                         std::uint64_t rows, std::uint64_t groups,
                                                         Granule granule) {
  const std::uint64_t row_step = granule == Granule::row     ? 1
                                 : granule == Granule::block ? kBlockRows
                                                             : rows;
  const std::uint64_t group_step = granule == Granule::block ? kBlockGroups : groups;
  std::array<LosslessReport, kExactWindows> reports;
  for (std::uint64_t row = 0; row < rows; row += row_step) {
    for (std::uint64_t group = 0; group < groups; group += group_step) {
      const Region region{row, std::min(row + row_step, rows), group,
                          std::min(group + group_step, groups)};
      const Span span = span_of(scales, groups, region);
      const int width = span.most - span.least + 1;
      for (std::size_t window = 0; window < kExactWindows; ++window) {
        LosslessReport& report = reports[window];
        const int room = width_of(static_cast<ExactWindow>(window));
        if (span.most != kE8m0NanCode && width <= room) {
          report.groups += span.groups;
        } else {
          add_region(Scales(scales, groups), region, room, report);
        }
      }
    }
  }
  return reports;
}

LosslessReport check_lossless(const std::uint8_t* scales, std::uint64_t rows, std::uint64_t groups,
                              Granule granule, ExactWindow window) {
  return check_lossless(scales, rows, groups, granule)[static_cast<std::size_t>(window)];
}

}  // namespace moxie
