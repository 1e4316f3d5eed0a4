// SPDX-License-Identifier: Apache-2.0
// Matrices to block-scaled FP4 and back between its two formats, with what that costs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "moxie/api.hpp"
#include "moxie/types.hpp"

namespace moxie {

// A block-scaled FP4 matrix in memory that somebody else owns: rows without gaps, even column in
// the low nibble.
struct Fp4MatrixRef {
  BlockFormat format = BlockFormat::nvfp4;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  const std::uint8_t* codes = nullptr;   // [rows, cols / 2]
  const std::uint8_t* scales = nullptr;  // [rows, cols / group]
  float dequant_mul = 1.0F;              // value = code * scale * dequant_mul
};

// The same, owned.
struct Fp4Matrix {
  BlockFormat format = BlockFormat::nvfp4;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::vector<std::uint8_t> codes;   // [rows, cols / 2]
  std::vector<std::uint8_t> scales;  // [rows, cols / group]
  float dequant_mul = 1.0F;

  [[nodiscard]] Fp4MatrixRef ref() const {
    return {format, rows, cols, codes.data(), scales.data(), dequant_mul};
  }
};

// How NVFP4 block scales are chosen. Every recipe divides by the rounded scale times the global.
// Where several scales are tried, the least squared error wins, and the larger scale on a tie.
enum class Nvfp4Recipe : std::uint8_t {
  amax,           // the block's maximum becomes 6
  mse,            // every scale from 3/4 to 7/4 of amax's
  four_over_six,  // the maximum becomes 6 or 4; the global leaves room for the second
  fp8_closed      // as mse, among scales under which every code's value is an E4M3 number
};
// "amax", "mse", "46", "fp8-closed".
MOXIE_API std::string_view name_of(Nvfp4Recipe recipe);

// How MXFP4 group scales are chosen, A the group's maximum.
enum class Mxfp4Recipe : std::uint8_t {
  ceil,   // the least power of two under which A is at most 6: nothing saturates
  floor,  // floor(log2 A) - 2, as in the OCP text: what lies above 6 saturates
  even,   // as floor, once mantissas from 1.75 on went to the next power of two
  mse     // ceil's or half of it, by the least squared error
};
// "ceil", "floor", "even", "mse".
MOXIE_API std::string_view name_of(Mxfp4Recipe recipe);

// What became of the values. Where NVFP4 rounds a scale down, the maximum is up to 1/16 above its 6
// and counts as clipped; saturated blocks are those that no scale could hold. Sums depend on the
// order in which they are merged, in their last bits.
struct MOXIE_API QuantStats {
  std::uint64_t elems = 0;
  std::uint64_t blocks = 0;
  std::uint64_t zero_blocks = 0;         // all values are 0
  std::uint64_t saturated_blocks = 0;    // the maximum is above what the largest scale reaches
  std::uint64_t underflowed_blocks = 0;  // not all values are 0, all codes are
  std::uint64_t clipped_elems = 0;       // above 6 times their own block's scale
  std::uint64_t flushed_elems = 0;       // not 0, but their code is
  std::uint64_t raised_globals = 0;      // matrices whose global is kNvfp4LeastGlobal
  double signal = 0;                     // sum of squared values
  double noise = 0;                      // sum of squared errors
  double max_error = 0;

  void merge(const QuantStats& other);
  // 10 log10(signal / noise): +Inf without noise, NaN without values.
  [[nodiscard]] double snr_db() const;
};

struct Quantised {
  Fp4Matrix matrix;
  QuantStats stats;
};

// The least global that is written: the product with the smallest block scale, 2^-9, and the
// reciprocal are then normal fp32 numbers. Matrices of smaller values get it all the same.
inline constexpr float kNvfp4LeastGlobal = 0x1p-117F;

// The global for matrices that must share one, such as gate and up of an expert: the largest
// magnitude over 2688 (amax, mse), 1536 (46) or 384 (fp8-closed); 1 if all values are 0. Errors: as
// quantise_nvfp4.
MOXIE_API float nvfp4_dequant_mul(std::span<const MatrixRef> matrices, Nvfp4Recipe recipe);

struct Nvfp4Options {
  Nvfp4Recipe recipe = Nvfp4Recipe::amax;
  std::optional<float> dequant_mul = std::nullopt;  // absent: the matrix's own
};

// Quantises f32 or bf16 rows. A block of zeros has scale 1 (0x38); other blocks have at least 2^-9.
// The bytes do not depend on the number of threads. Errors: Error(unsupported) MOXIE-Q001 for
// columns that are no multiple of 16, another element type or rows that overlap; Error(input)
// MOXIE-Q002 for values that are not finite, with their number; MOXIE-Q003 for a given global that
// is not finite, less than kNvfp4LeastGlobal or too large for fp32.
MOXIE_API Quantised quantise_nvfp4(const MatrixRef& matrix, const Nvfp4Options& options);

// As quantise_nvfp4, in groups of 32. A group of zeros has scale byte 0x00.
MOXIE_API Quantised quantise_mxfp4(const MatrixRef& matrix, Mxfp4Recipe recipe);

struct Nvfp4Cast {
  std::vector<Fp4Matrix> matrices;       // in the order given, with one global
  std::uint64_t requantised_groups = 0;  // scale out of reach and a code that is not 0
  std::uint64_t changed_groups = 0;      // of these: a value changed
};

// MXFP4 matrices as NVFP4 with a common power-of-two global: the largest scale becomes 2^8, codes
// stay. Exact while scales differ by no more than 2^17; groups further down get the smallest scale
// and new codes. Scale byte 0x00 marks a group of zeros. Errors: as quantise_mxfp4
// for the columns; Error(input) MOXIE-Q002 for a scale that is NaN, MOXIE-Q003 for a global.
MOXIE_API Nvfp4Cast mxfp4_to_nvfp4(std::span<const Fp4MatrixRef> matrices);

// The MXFP4 matrix that an NVFP4 one was cast from: block scales are powers of two and equal in
// pairs (a block of zeros has any scale). A power-of-two global goes into the scales where all have
// room for it; otherwise it stays in `dequant_mul`. nullopt when it is no such matrix.
MOXIE_API std::optional<Fp4Matrix> nvfp4_to_mxfp4(const Fp4MatrixRef& matrix);

// The NVFP4 matrix with its global in the block scales. nullopt unless that is exact: the global is
// a power of two and no scale leaves UE4M3.
MOXIE_API std::optional<Fp4Matrix> fold_dequant_mul(const Fp4MatrixRef& matrix);

// Element types that can hold code * 2^k of every E2M1 code, and for which k.
enum class ExactWindow : std::uint8_t {
  e4m3_normal,  // k = -5..6, normal numbers only
  e4m3_exact,   // k = -8..6, subnormals too
  e5m2_normal,  // k = -13..13
  e5m2_exact,   // k = -15..13
  f16_exact     // k = -23..13: no FP8, and wider than both
};
inline constexpr std::size_t kExactWindows = 5;
// "e4m3_normal", "e4m3_exact", …
MOXIE_API std::string_view name_of(ExactWindow window);

struct ExponentRange {
  int least = 0;
  int most = 0;
};
MOXIE_API ExponentRange exponents_of(ExactWindow window);

// What shares one power-of-two factor.
enum class Granule : std::uint8_t {
  row,    // one row
  block,  // 128 rows of 128 columns
  whole   // the matrix
};
// "row", "block", "expert": a matrix is one expert's.
MOXIE_API std::string_view name_of(Granule granule);

struct LosslessReport {
  std::uint64_t groups = 0;  // without those of scale byte 0x00, which are zeros
  std::uint64_t outside = 0;
  // The group furthest outside, the first of several, and by how many exponents the window would
  // have to be wider to hold it together with those inside.
  std::uint64_t worst_row = 0;
  std::uint64_t worst_group = 0;
  int worst_distance = 0;
};

// How many groups of an MXFP4 matrix are not exact in FP8 when every granule gets the factor that
// leaves the fewest outside; of equal factors the one that keeps the larger values. Errors:
// Error(input) MOXIE-Q002 for a scale that is NaN.
MOXIE_API LosslessReport check_lossless(const std::uint8_t* scales,  // E8M0 [rows, groups]
                                        std::uint64_t rows, std::uint64_t groups, Granule granule,
                                        ExactWindow window);
// The same for every window in one pass, by window.
MOXIE_API std::array<LosslessReport, kExactWindows> check_lossless(
    const std::uint8_t* scales,  // E8M0 [rows, groups]
    std::uint64_t rows, std::uint64_t groups, Granule granule);

}  // namespace moxie
