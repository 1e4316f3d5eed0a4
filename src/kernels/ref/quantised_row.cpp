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

void quantise_fp8(const Group& group) {
  std::array<float, act_group(ActFormat::fp8)> centres{};
  double least_amax = 0;  // of any engine's group
  double most_amax = 0;
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    centres[i] = rounded(group.values[i]);
    least_amax = std::max(least_amax, std::abs(group.values[i]) - group.radii[i]);
    most_amax = std::max(most_amax, std::abs(group.values[i]) + group.radii[i]);
  }
  const float scale = fp8_scale(group_amax(centres.data(), group.columns));
  // All scales are powers of two.
  const int least_exponent = std::ilogb(fp8_scale(rounded(least_amax)));
  const int most_exponent = std::ilogb(fp8_scale(rounded(most_amax)));
  for (std::uint64_t i = 0; i < group.columns; ++i) {
    const double value = group.values[i];
    const double radius = group.radii[i];
    group.quantised[i] = fp8_value(centres[i], scale);
    group.least[i] = group.most[i] = group.quantised[i];
    for (int exponent = least_exponent; exponent <= most_exponent; ++exponent) {
      const float other = std::ldexp(1.0F, exponent);
      group.least[i] = std::min<double>(group.least[i], fp8_value(rounded(value - radius), other));
      group.most[i] = std::max<double>(group.most[i], fp8_value(rounded(value + radius), other));
    }
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
  MOXIE_CHECK(supports(format), "the reference has this activation format");
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
      } else {
        quantise_fp8(group);
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

}  // namespace moxie::ref
