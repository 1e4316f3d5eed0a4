// SPDX-License-Identifier: Apache-2.0
// Quantisers do not decrease, and rounding to fp32 does not either: the ends of an interval bound
// what its inside becomes, for each block scale on its own.
#include "kernels/ref/quantised_row.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/checked.hpp"
#include "formats/act_quant.hpp"
#include "kernels/ref/reference.hpp"

namespace moxie::ref {

namespace {

float rounded(double value) { return static_cast<float>(value); }

struct Group {
  const double* values;
  const double* radii;
  std::uint64_t columns;
  double* quantised;
  double* least;
  double* most;
};

void quantise_bf16(const Group& group) {
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    const double value = group.values[i];
    const double radius = group.radii[i];
    group.quantised[i] = bf16_value(rounded(value));
    group.least[i] = bf16_value(rounded(value - radius));
    group.most[i] = bf16_value(rounded(value + radius));
  }
}

// A format with scales that are powers of two.
struct PowerOfTwo {
  float (*scale)(float amax);
  float (*value)(float value, float scale);
};
constexpr PowerOfTwo kFp8 = {.scale = fp8_scale, .value = fp8_value};
// The two codes together do not decrease either: where the high one steps, half a step is a low
// one.
constexpr PowerOfTwo kFp8x2 = {.scale = fp8x2_scale, .value = fp8x2_value};

void quantise_power_of_two(const Group& group, const PowerOfTwo& format) {
  std::array<float, act_group(ActFormat::fp8)> centres{};
  double least_amax = 0;  // of any engine's group
  double most_amax = 0;
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    centres[i] = rounded(group.values[i]);
    least_amax = std::max(least_amax, std::abs(group.values[i]) - group.radii[i]);
    most_amax = std::max(most_amax, std::abs(group.values[i]) + group.radii[i]);
  }
  const float scale = format.scale(group_amax(centres.data(), group.columns));
  const int least_exponent = std::ilogb(format.scale(rounded(least_amax)));
  const int most_exponent = std::ilogb(format.scale(rounded(most_amax)));
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    const double value = group.values[i];
    const double radius = group.radii[i];
    group.quantised[i] = format.value(centres[i], scale);
    group.least[i] = group.most[i] = group.quantised[i];
    for (int exponent = least_exponent; exponent <= most_exponent; ++exponent) {
      const float other = std::ldexp(1.0F, exponent);
      group.least[i] =
          std::min<double>(group.least[i], format.value(rounded(value - radius), other));
      group.most[i] = std::max<double>(group.most[i], format.value(rounded(value + radius), other));
    }
  }
}

// Steps of a format of int8 in one scale: a value is a whole number of them.
double steps_of(ActFormat format) { return format == ActFormat::int8 ? 1 : kInt8Steps; }

// A value's steps under the scale of its group.
double int8_steps(ActFormat format, float value, float scale) {
  const std::int8_t high = int8_code(value, scale);
  if (format == ActFormat::int8) return high;
  return kInt8Steps * static_cast<double>(high) + int8x2_low(value, scale, high);
}

// Ends of scale * steps / (steps in one scale) for any value and any scale of two intervals.
// Roundings move the steps by less than kSlack from the nearest of a quotient.
void widen_by_int8(ActFormat format, double low, double high, float least_scale, float most_scale,
                   double& least, double& most) {
  constexpr double kSlack = 0x1p-14;
  const double in_scale = steps_of(format);
  const double reach = kInt8Max * in_scale;
  const double low_scale = std::max(least_scale, kInt8LeastScale);
  const double high_scale = most_scale;
  const double fewest = std::clamp(
      std::ceil(low / (low < 0 ? low_scale : high_scale) * in_scale - 0.5 - kSlack), -reach, reach);
  const double most_steps =
      std::clamp(std::floor(high / (high < 0 ? high_scale : low_scale) * in_scale + 0.5 + kSlack),
                 -reach, reach);
  least = std::min(least, fewest * (fewest < 0 ? high_scale : low_scale) / in_scale);
  most = std::max(most, most_steps * (most_steps < 0 ? low_scale : high_scale) / in_scale);
}

void quantise_int8(ActFormat format, const Group& group) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::array<float, kInt8Group> centres{};
  double least_amax = 0;  // of any engine's group
  double most_amax = 0;
  bool bounded = true;  // every engine's group holds numbers alone
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    centres[i] = rounded(group.values[i]);
    const double magnitude = std::abs(group.values[i]);
    least_amax = std::max(least_amax, magnitude - group.radii[i]);
    most_amax = std::max(most_amax, magnitude + group.radii[i]);
    bounded = bounded && std::isfinite(rounded(magnitude + group.radii[i]));
  }
  const float scale = int8_scale(centres.data(), group.columns);
  const float least = rounded(least_amax);
  const float most = rounded(most_amax);
  const float least_scale = int8_scale(&least, 1);
  const float most_scale = int8_scale(&most, 1);
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    group.quantised[i] = scale * int8_steps(format, centres[i], scale) / steps_of(format);
    group.least[i] = group.most[i] = group.quantised[i];
    if (std::isnan(scale)) continue;
    if (!bounded) {
      group.least[i] = -kInfinity;
      group.most[i] = kInfinity;
      continue;
    }
    // An engine's scale may be 0.
    if (!has_int8_codes(least_scale)) {
      group.least[i] = std::min(group.least[i], 0.0);
      group.most[i] = std::max(group.most[i], 0.0);
    }
    if (!has_int8_codes(most_scale)) continue;
    widen_by_int8(format, rounded(group.values[i] - group.radii[i]),
                  rounded(group.values[i] + group.radii[i]), least_scale, most_scale,
                  group.least[i], group.most[i]);
  }
}

void quantise_nvfp4(const Group& group, const GlobalScale& global) {
  AmaxRange amax;
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    const double value = rounded(group.values[i]);
    amax.centre = std::abs(value) > amax.centre ? std::abs(value) : amax.centre;
    AmaxRange reach;
    reach.add(group.values[i], group.radii[i]);
    amax.least = std::max(amax.least, reach.least);
    amax.most = std::max(amax.most, reach.most);
  }
  const float scale = block_scale(static_cast<float>(amax.centre), global.centre);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    const double value = group.values[i];
    const double radius = group.radii[i];
    group.quantised[i] = block_value(rounded(value), scale, global.centre);
    group.least[i] = group.most[i] = group.quantised[i];
    // What is not bounded before it is quantised may be NaN in an engine: clipping bounds nothing.
    if (std::isfinite(value) && !std::isfinite(radius)) {
      group.least[i] = -kInfinity;
      group.most[i] = kInfinity;
    }
    if (!std::isfinite(value) || !std::isfinite(radius)) continue;
    for (std::uint32_t r = 0; r < global.count; ++r) {
      const GlobalScale::Range range = global.ranges[r];
      const ValueRange ends = value_range(rounded(value - radius), rounded(value + radius),
                                          scale_code(rounded(amax.least), range.most),
                                          scale_code(rounded(amax.most), range.least), range);
      group.least[i] = std::min(group.least[i], ends.least);
      group.most[i] = std::max(group.most[i], ends.most);
    }
  }
}

}  // namespace

void quantise_row(ActFormat format, const RowToQuantise& row, const QuantisedRow& result) {
  MOXIE_CHECK(format != ActFormat::nvfp4, "nvfp4 comes with its global scales");
  const std::uint64_t width = row.values.size();
  for (std::size_t part = 0; part < row.part_starts.size(); ++part) {
    const std::uint64_t end = part + 1 < row.part_starts.size() ? row.part_starts[part + 1] : width;
    // A format without groups takes the part as one.
    const std::uint64_t size = format == ActFormat::bf16 ? width : act_group(format);
    for (std::uint64_t first = row.part_starts[part]; first < end; first += size) {
      const Group group{.values = row.values.data() + first,
                        .radii = row.radii.data() + first,
                        .columns = std::min(size, end - first),
                        .quantised = result.quantised.data() + first,
                        .least = result.least.data() + first,
                        .most = result.most.data() + first};
      if (format == ActFormat::bf16) {
        quantise_bf16(group);
      } else if (format == ActFormat::int8 || format == ActFormat::int8x2) {
        quantise_int8(format, group);
      } else {
        quantise_power_of_two(group, format == ActFormat::fp8x2 ? kFp8x2 : kFp8);
      }
    }
  }
}

void quantise_row(const RowToQuantise& row, std::span<const GlobalScale> scales,
                  const QuantisedRow& result) {
  MOXIE_CHECK(scales.size() == row.part_starts.size(), "every part has a global scale");
  constexpr std::uint64_t kBlock = 16;
  const std::uint64_t width = row.values.size();
  for (std::size_t part = 0; part < row.part_starts.size(); ++part) {
    const std::uint64_t end = part + 1 < row.part_starts.size() ? row.part_starts[part + 1] : width;
    for (std::uint64_t first = row.part_starts[part]; first < end; first += kBlock) {
      quantise_nvfp4({.values = row.values.data() + first,
                      .radii = row.radii.data() + first,
                      .columns = std::min(kBlock, end - first),
                      .quantised = result.quantised.data() + first,
                      .least = result.least.data() + first,
                      .most = result.most.data() + first},
                     scales[part]);
    }
  }
}

void quantise_nvfp4(std::span<const float> x, float scale, double* quantised) {
  constexpr std::size_t kBlock = 16;
  for (std::size_t first = 0; first < x.size(); first += kBlock) {
    const auto block = x.subspan(first, std::min(kBlock, x.size() - first));
    AmaxRange amax;
    for (const float value : block) amax.add(value, 0);
    const float block_scale = ref::block_scale(static_cast<float>(amax.centre), scale);
    for (const float value : block) *quantised++ = block_value(value, block_scale, scale);
  }
}

void quantise_int8(ActFormat format, std::span<const float> x, double* quantised) {
  for (std::size_t first = 0; first < x.size(); first += kInt8Group) {
    const auto group = x.subspan(first, std::min<std::size_t>(kInt8Group, x.size() - first));
    const float scale = int8_scale(group.data(), group.size());
    for (const float value : group)
      *quantised++ = scale * int8_steps(format, value, scale) / steps_of(format);
  }
}

}  // namespace moxie::ref
