// SPDX-License-Identifier: Apache-2.0
// Element types, block formats, and the units in which an axis is measured.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/api.hpp"

namespace moxie {

// A length measured in one unit. Lengths of different units neither add, compare nor convert: a
// scale-group count can not be used where packed bytes are meant. `value` is the plain number, for
// the edge where memory is addressed.
template <class Unit>
struct Length {
  std::uint64_t value = 0;

  constexpr Length() = default;
  constexpr explicit Length(std::uint64_t count) : value(count) {}

  friend constexpr auto operator<=>(const Length&, const Length&) = default;
  friend constexpr Length operator+(Length a, Length b) { return Length{a.value + b.value}; }
  friend constexpr Length operator-(Length a, Length b) { return Length{a.value - b.value}; }
  friend constexpr Length operator*(Length a, std::uint64_t n) { return Length{a.value * n}; }
  constexpr Length& operator+=(Length other) { return *this = *this + other; }
};

// Elements of a logical axis. A row of gate or up is one element of the `moe_inter` axis.
using Elems = Length<struct ElemsUnit>;
// Packed bytes along a row: two E2M1 elements each.
using PackedBytes = Length<struct PackedBytesUnit>;
// Scale groups along a row: 32 (MXFP4) or 16 (NVFP4) elements each.
using ScaleGroups = Length<struct ScaleGroupsUnit>;
// Stored entries of a tensor along the dimension that is cut: rows, columns or tiles of either.
using Entries = Length<struct EntriesUnit>;

// Block-scaled FP4: E2M1 elements with one scale per group along the reduction axis.
enum class BlockFormat : std::uint8_t {
  mxfp4,  // groups of 32, E8M0 scale, no global
  nvfp4,  // groups of 16, UE4M3 scale, one fp32 global per tensor
};

// "mxfp4" or "nvfp4".
MOXIE_API std::string_view name_of(BlockFormat format);

// Element types of the safetensors format, and the block types of GGUF.
enum class DType : std::uint8_t {
  boolean,
  u8,
  i8,
  u16,
  i16,
  u32,
  i32,
  u64,
  i64,
  f64,
  f32,
  f16,
  bf16,
  f8_e4m3,
  f8_e5m2,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f4,
  f6_e2m3,
  f6_e3m2,
  c64,
  mxfp4_blocks,  // 32 elements in 17 bytes: an E8M0 scale, then the codes
  nvfp4_blocks,  // 64 elements in 36 bytes: 4 UE4M3 scales, then the codes
  other_blocks,  // a block type that is not read
};

// The name in a safetensors header, e.g. "F8_E8M0".
MOXIE_API std::string_view name_of(DType dtype);
// Width of one element in bits; 4 for F4, 6 for F6_*; 0 for block types, which have none.
MOXIE_API unsigned bits_of(DType dtype);

// Extents of a tensor, outermost first; empty for a scalar.
using Shape = std::vector<std::uint64_t>;

// "[2048, 128]".
MOXIE_API std::string to_string(const Shape& shape);

// What a plan targets. `cpu` needs no device.
enum class Target : std::uint8_t { cpu, sm90, sm100, sm120 };
MOXIE_API std::string_view name_of(Target target);

enum class Activation : std::uint8_t {
  silu,            // silu(gate) * up
  clamped_swiglu,  // gate clamped from above, up on both sides, then silu(gate) * up
  oai_swiglu,      // clamped, gate * sigmoid(1.702 gate) * (up + 1)
  situ,            // tanh-bounded gate and up
  relu2,           // max(x, 0)^2, no gate
  gelu_tanh        // gelu_tanh(gate) * up
};
MOXIE_API std::string_view name_of(Activation activation);
// Whether a function looks at a gate, and whether it clamps at a limit that the config states.
MOXIE_API bool has_gate(Activation activation);
MOXIE_API bool has_limit(Activation activation);

enum class RouterKind : std::uint8_t {
  sqrt_softplus,  // sqrt(softplus), correction bias for selection; token-id table on hash layers
  sigmoid,        // sigmoid, correction bias for selection, optional groups
  softmax_topk,   // softmax over all, then top-k
  topk_softmax,   // top-k, then softmax over the chosen
  scaled_softmax  // normalised input, softmax, top-k, per-expert scale
};
MOXIE_API std::string_view name_of(RouterKind router);

// How activations enter the matrix products (definitions: docs/formats.md).
enum class ActFormat : std::uint8_t { bf16, fp8, fp8x2, mxfp8, nvfp4, int8, int8x2 };
MOXIE_API std::string_view name_of(ActFormat act_format);

// Where the global scales of nvfp4 activations come from.
enum class ActScale : std::uint8_t {
  checkpoint,  // the stored input scales, per expert
  warmup,      // margin * observed amax / 2688, measured once and frozen, per rank
  dynamic,     // amax of the call / 2688, per rank; a token's result depends on the batch
  row          // amax of the row / 2688: of a token for x, of a slot for what enters down
};
MOXIE_API std::string_view name_of(ActScale act_scale);

// A matrix in memory that somebody else owns: row r starts `r * row_stride` elements after `data`.
struct MatrixRef {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t row_stride = 0;
};
struct MutableMatrixRef {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t row_stride = 0;
};

// Columns of an FP8 row that have a scale in common; the last ones of a row may be fewer.
inline constexpr std::uint64_t kScaledColumns = 128;

// Scales of FP8 rows, one f32 for kScaledColumns columns of a row: a value is code * scale, rounded
// to f32. Strides in floats: of rows and blocks at least 1.
struct RowBlockScales {
  const float* data = nullptr;
  std::uint64_t row_stride = 0;    // to the next row
  std::uint64_t block_stride = 0;  // to the next kScaledColumns columns
  // Where experts stand apart (rows_apart), from one expert's first row to the next one's; 0: as
  // rows lie. Not looked at where they lie one behind the other.
  std::uint64_t expert_stride = 0;
};

}  // namespace moxie
