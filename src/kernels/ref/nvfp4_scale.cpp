// SPDX-License-Identifier: Apache-2.0
// The definition step by step in fp32. Every step is monotonic, so that ends bound what lies
// between them.
#include "kernels/ref/nvfp4_scale.hpp"

#include "formats/e2m1.hpp"
#include "formats/e4m3.hpp"

namespace moxie::ref {

namespace {

// Of an amax of 1.
constexpr float kFallback = 1.0F / 2688.0F;
// From here on the product with the least block scale, 2^-9, is a normal number.
constexpr float kLeast = 0x1p-117F;
// Up to here 2688 times it is finite.
constexpr float kMost = 0x1p116F;

bool is_usable(float scale) { return scale >= kLeast && scale <= kMost; }

float quotient(double amax) { return static_cast<float>(amax) / 2688.0F; }

// E2M1 of the quotient; an unsigned zero where the block has no scale.
double code_value(float value, float scale, float global) {
  if (scale == 0) return 0;
  const float divisor = scale * global;
  return decode_e2m1(encode_e2m1(value / divisor));
}

}  // namespace

GlobalScale given_scale(float scale) {
  const float used = is_usable(scale) ? scale : kFallback;
  return {.centre = used, .ranges = {{{.least = used, .most = used}, {}}}, .count = 1};
}

GlobalScale scale_of(const AmaxRange& amax) {
  GlobalScale scale = given_scale(quotient(amax.centre));
  const float least = quotient(amax.least);
  const float most = quotient(amax.most);
  scale.count = 0;
  if (most >= kLeast && least <= kMost) {
    scale.ranges[scale.count++] = {.least = std::max(least, kLeast), .most = std::min(most, kMost)};
  }
  if (!is_usable(least) || !is_usable(most))
    scale.ranges[scale.count++] = {.least = kFallback, .most = kFallback};
  return scale;
}

std::uint8_t scale_code(float amax, float global) {
  const float sixth = amax / 6.0F;
  return encode_e4m3_sat(sixth / global);
}

float block_scale(float amax, float global) { return decode_e4m3(scale_code(amax, global)); }

double block_value(float value, float scale, float global) {
  if (std::isnan(value)) return value;
  return code_value(value, scale, global) * static_cast<double>(scale) *
         static_cast<double>(global);
}

ValueRange value_range(float low, float high, std::uint8_t first_scale, std::uint8_t last_scale,
                       GlobalScale::Range global) {
  ValueRange range{.least = HUGE_VAL, .most = -HUGE_VAL};
  for (unsigned code = first_scale; code <= last_scale; ++code) {
    const float scale = decode_e4m3(static_cast<std::uint8_t>(code));
    for (const float divided : {global.least, global.most}) {
      for (const float multiplied : {global.least, global.most}) {
        const double step = static_cast<double>(scale) * static_cast<double>(multiplied);
        range.least = std::min(range.least, code_value(low, scale, divided) * step);
        range.most = std::max(range.most, code_value(high, scale, divided) * step);
      }
    }
  }
  return range;
}

}  // namespace moxie::ref
