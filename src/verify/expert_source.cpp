// SPDX-License-Identifier: Apache-2.0
// Pointers into mapped files, or into one expert's joined tensors, with the refusals of pack().
#include "verify/expert_source.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "formats/act_quant.hpp"
#include "formats/block_format.hpp"
#include "pack/scale_check.hpp"

namespace moxie {

namespace {

const std::uint8_t* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

}  // namespace

ref::Expert CheckpointExperts::expert(std::uint64_t number) {
  const ExpertTensors& tensors = layer_.experts[number];
  const bool gated = tensors.gate.codes.present();
  gathered_.clear();
  return {.gate = gated ? matrix(number, ProjectionKind::gate, tensors.gate) : ref::Matrix{},
          .up = matrix(number, ProjectionKind::up, tensors.up),
          .down = matrix(number, ProjectionKind::down, tensors.down)};
}

ref::Matrix CheckpointExperts::matrix(std::uint64_t expert, ProjectionKind kind,
                                      const Projection& projection) {
  const Rows scales = rows_of(projection.block_scales);
  for (std::uint64_t row = 0; row < projection.block_scales.rows; ++row) {
    const std::span bytes(scales.first + row * scales.stride, projection.block_scales.row_bytes);
    const std::size_t bad = first_bad_scale(layer_.format, std::as_bytes(bytes));
    if (bad == bytes.size()) continue;
    refuse_scale(model_.checkpoint, layer_, expert, *projection.block_scales.tensor, row, bad,
                 std::byte{bytes[bad]});
  }
  const Rows codes = rows_of(projection.codes);
  ref::Matrix matrix{.codes = codes.first,
                     .codes_stride = codes.stride,
                     .scales = scales.first,
                     .scales_stride = scales.stride,
                     .dequant_mul = dequant_mul(expert, kind, projection.dequant_mul)};
  if (projection.bias.present()) {
    matrix.bias = gathered_rows(projection.bias).first;
    const auto& biases = gathered_.back();
    check_biases(biases, 0, place_of(model_.checkpoint, layer_, expert, *projection.bias.tensor));
  }
  if (act_scales_) matrix.act_dequant_mul = act_dequant_mul(expert, kind, projection);
  return matrix;
}

float CheckpointExperts::act_dequant_mul(std::uint64_t expert, ProjectionKind kind,
                                         const Projection& projection) const {
  const ScalarRef& scalar = projection.act_dequant_mul;
  if (scalar.present()) return read_act_scale(model_.checkpoint, layer_, expert, kind, scalar);
  throw Error(ErrorCode::input, {.code = "MOXIE-M006",
                                 .message = std::string(name_of(kind)) + " has no activation scale",
                                 .where = {.layer = layer_.layer, .expert = expert}});
}

// The checkpoint's own bytes where they are canonical.
CheckpointExperts::Rows CheckpointExperts::rows_of(const RowsView& view) {
  if (view.packing != RowPacking::plain) return gathered_rows(view);
  return {octets(model_.checkpoint.bytes(*view.tensor).subspan(view.offset)), view.row_stride};
}

CheckpointExperts::Rows CheckpointExperts::gathered_rows(const RowsView& view) {
  std::vector<std::byte>& bytes = gathered_.emplace_back(view.rows * view.row_bytes);
  for (std::uint64_t row = 0; row < view.rows; ++row) {
    read_row(model_.checkpoint, view, row, 0,
             std::span(bytes).subspan(row * view.row_bytes, view.row_bytes));
  }
  return {octets(bytes), view.row_bytes};
}

double CheckpointExperts::dequant_mul(std::uint64_t expert, ProjectionKind kind,
                                      const ScalarRef& scalar) const {
  if (!layer_.recast && !block_spec(layer_.format).has_global) return 1;
  return read_global(model_.checkpoint, layer_, expert, kind, scalar);
}

JoinedExperts::JoinedExperts(const ShardPlan& plan, BlobOf blob_of)
    : plan_(plan),
      owners_(owners_of(plan)),
      blob_of_(std::move(blob_of)),
      joined_(make_unpacked(plan, std::byte{0xFF})) {}

ref::Expert JoinedExperts::expert(std::uint64_t number) {
  for (std::vector<std::byte>& tensor : joined_.tensors) std::ranges::fill(tensor, std::byte{0xFF});
  const std::uint32_t holder = owners_.holders(number).front();  // all hold the same
  for (const RankPlan& rank : plan_.ranks) {
    if (rank.ep_rank != holder) continue;
    unpack_expert(plan_, rank, blob_of_(rank.rank, number), joined_);
  }
  return {.gate = plan_.gated ? matrix(number, ProjectionKind::gate, plan_.hidden) : ref::Matrix{},
          .up = matrix(number, ProjectionKind::up, plan_.hidden),
          .down = matrix(number, ProjectionKind::down, plan_.inter().original.value)};
}

// Segments are numbered part by part, projection by projection.
const std::vector<std::byte>& JoinedExperts::tensor(Segment part, ProjectionKind kind) const {
  return joined_.tensors[static_cast<std::size_t>(part) + static_cast<std::size_t>(kind)];
}

ref::Matrix JoinedExperts::matrix(std::uint64_t expert, ProjectionKind kind,
                                  std::uint64_t columns) const {
  const auto& scales = tensor(Segment::gate_scale, kind);
  const std::uint64_t groups = to_scale_groups(Elems{columns}, plan_.format).value;
  if (const std::size_t bad = first_bad_scale(plan_.format, scales); bad != scales.size()) {
    throw Error(
        ErrorCode::input,
        {.code = "MOXIE-K003",
         .message = std::string(name_of(kind)) + " has a scale that is no number at row " +
                    std::to_string(bad / groups) + ", group " + std::to_string(bad % groups),
         .where = {.expert = expert},
         .hint = "pack the expert again from its checkpoint"});
  }
  ref::Matrix matrix{.codes = octets(tensor(Segment::gate, kind)),
                     .codes_stride = to_packed_bytes(Elems{columns}).value,
                     .scales = octets(scales),
                     .scales_stride = groups,
                     .dequant_mul = dequant_mul(expert, kind)};
  if (plan_.biases) {
    const auto& biases = tensor(Segment::gate_bias, kind);
    check_biases(biases, 0, {.tensor = std::string(name_of(kind)) + "_bias", .expert = expert});
    matrix.bias = octets(biases);
  }
  if (consumes_act_scales(plan_)) matrix.act_dequant_mul = act_dequant_mul(expert, kind);
  return matrix;
}

double JoinedExperts::dequant_mul(std::uint64_t expert, ProjectionKind kind) const {
  if (plan_.layout.find(Segment::up_dequant_mul) == nullptr) return 1;
  float value = std::numeric_limits<float>::quiet_NaN();
  const auto& bytes = tensor(Segment::gate_dequant_mul, kind);
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  if (!(std::isfinite(value) && value > 0)) {
    throw Error(ErrorCode::input,
                {.code = "MOXIE-M007",
                 .message = std::string(name_of(kind)) + " has no usable global scale",
                 .where = {.expert = expert},
                 .expected = "a finite number greater than zero",
                 .got = std::to_string(value),
                 .hint = "pack the expert again from its checkpoint"});
  }
  return value;
}

float JoinedExperts::act_dequant_mul(std::uint64_t expert, ProjectionKind kind) const {
  float value = std::numeric_limits<float>::quiet_NaN();
  const auto& bytes = tensor(Segment::gate_act_dequant_mul, kind);
  if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
  if (is_act_scale(value)) return value;
  throw Error(ErrorCode::input,
              {.code = "MOXIE-M007",
               .message = std::string(name_of(kind)) + " has no usable activation scale",
               .where = {.expert = expert},
               .expected = "2^-117 to 2^116",
               .got = std::to_string(value),
               .hint = "pack the expert again from its checkpoint"});
}

}  // namespace moxie
