// SPDX-License-Identifier: Apache-2.0
// Logical files keep stored types: biases that were widened for the blob are narrowed again, which
// is exact.
#include "pack/logical_tensor.hpp"

#include <array>
#include <bit>
#include <string>
#include <utility>

#include "formats/block_format.hpp"
#include "model/dialects/dialect.hpp"
#include "pack/segment_source.hpp"

namespace moxie {

namespace {

std::string_view part_name(const DialectNames& names, Part part) {
  switch (part) {
    case Part::codes:
      return names.codes;
    case Part::block_scales:
      return names.block_scales;
    case Part::dequant_mul:
      return names.dequant_mul;
    case Part::act_dequant_mul:
      return names.act_dequant_mul;
    case Part::bias:
      return names.bias;
  }
  return {};
}

DType stacked_type(BlockFormat format, Part part, const TensorInfo* tensor) {
  switch (part) {
    case Part::codes:
      return DType::u8;
    case Part::block_scales:
      return format == BlockFormat::mxfp4 ? DType::u8 : DType::f8_e4m3;
    case Part::bias:
      return tensor->dtype;
    default:
      return DType::f32;
  }
}

}  // namespace

std::optional<LogicalTensor> logical_tensor(const Checkpoint& checkpoint, const LayerExperts& layer,
                                            std::uint64_t expert, const PackedSegment& segment) {
  const SegmentSource source = source_of(segment.segment);
  const ExpertTensors& tensors = layer.experts[expert];
  LogicalTensor logical{.segment = segment, .entry = {}, .scalar = {}};
  const TensorInfo* tensor = nullptr;
  if (source.is_scalar()) {
    const ScalarRef scalar = scalar_of(tensors, source);
    if (!scalar.present()) return std::nullopt;
    tensor = scalar.tensor;
    logical.scalar = stored_scalar(checkpoint, scalar);
  } else {
    tensor = rows_of(tensors, source).tensor;
    if (tensor == nullptr) return std::nullopt;
  }
  TensorEntry& entry = logical.entry;
  if (layer.stacked) {
    const DialectNames& names =
        layer.format == BlockFormat::mxfp4 ? kQuark.namings.front() : kModelopt.namings.front();
    entry.name = "model.layers." + std::to_string(layer.layer) + ".mlp.experts." +
                 std::to_string(expert) + ".";
    entry.name += names.projections[static_cast<std::size_t>(source.projection)];
    entry.name += part_name(names, source.part);
    entry.dtype = stacked_type(layer.format, source.part, tensor);
  } else {
    entry.name = tensor->name;
    entry.dtype = tensor->dtype;
    if (source.is_scalar()) entry.shape = tensor->shape;
  }
  if (source.part == Part::bias) {
    entry.shape = {segment.rows};
  } else if (!source.is_scalar()) {
    entry.shape = {segment.rows, segment.row_bytes * 8 / bits_of(entry.dtype)};
  }
  return logical;
}

std::vector<LogicalTensor> logical_tensors(const Checkpoint& checkpoint, const PackedLayout& layout,
                                           const LayerExperts& layer, std::uint64_t expert) {
  std::vector<LogicalTensor> tensors;
  for (const PackedSegment& segment : layout.segments) {
    auto tensor = logical_tensor(checkpoint, layer, expert, segment);
    if (tensor) tensors.push_back(*std::move(tensor));
  }
  return tensors;
}

void write_logical(const LogicalTensor& tensor, std::span<const std::byte> blob,
                   SafetensorsWriter& writer) {
  const auto bytes = blob.subspan(tensor.segment.offset, tensor.segment.bytes());
  if (tensor.scalar) {
    writer.write(std::bit_cast<std::array<std::byte, sizeof(float)>>(*tensor.scalar));
  } else if (source_of(tensor.segment.segment).part == Part::bias &&
             tensor.entry.dtype == DType::bf16) {
    std::vector<std::byte> narrow;
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(float))
      narrow.insert(narrow.end(), {bytes[at + 2], bytes[at + 3]});
    writer.write(narrow);
  } else {
    writer.write(bytes);
  }
}

std::vector<std::byte> canonical_biases(DType stored, std::span<const std::byte> bytes) {
  if (stored != DType::bf16) return {bytes.begin(), bytes.end()};
  std::vector<std::byte> wide;
  for (std::size_t at = 0; at < bytes.size(); at += 2)
    wide.insert(wide.end(), {std::byte{0}, std::byte{0}, bytes[at], bytes[at + 1]});
  return wide;
}

}  // namespace moxie
