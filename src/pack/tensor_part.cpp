// SPDX-License-Identifier: Apache-2.0
// Stored entries become rows and bytes here and nowhere else.
#include "pack/tensor_part.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/checked.hpp"

namespace moxie {

namespace {

// f32 minus infinity, little endian.
constexpr std::array kMinusInfinity = {std::byte{0x00}, std::byte{0x00}, std::byte{0x80},
                                       std::byte{0xFF}};

std::uint64_t elems_of(const Shape& shape, std::size_t from) {
  std::uint64_t elems = 1;
  for (std::size_t i = from; i < shape.size(); ++i) elems *= shape[i];
  return elems;
}

UnitRange<Entries> range_of(const TensorCut& cut, const ShardPlan& plan, unsigned tp_rank) {
  const AxisPlan* axis = plan.find(cut.axis);
  MOXIE_CHECK(axis != nullptr, "a plan has the axis along which a tensor is cut");
  return cut_range(cut, *axis, tp_rank);
}

void fill_tail(std::span<std::byte> bytes, Tail tail) {
  if (tail == Tail::zero) {
    std::ranges::fill(bytes, std::byte{0});
    return;
  }
  for (std::size_t at = 0; at < bytes.size(); ++at) bytes[at] = tail_byte(tail, at);
}

}  // namespace

TensorRows rows_of(const ModelTensor& tensor) {
  const std::uint64_t bits = bits_of(tensor.dtype);
  if (bits % 8 != 0) return {elems_of(tensor.shape, 0) * bits / 8, 1};
  if (tensor.shape.empty()) return {1, bits / 8};
  return {tensor.shape[0], elems_of(tensor.shape, 1) * bits / 8};
}

TensorPart part_of(const ModelTensor& tensor, const ShardPlan& plan, unsigned tp_rank) {
  const TensorRows whole = rows_of(tensor);
  TensorPart part{.real_rows = whole.rows,
                  .real_row_bytes = whole.row_bytes,
                  .source_row_bytes = whole.row_bytes,
                  .rows = whole.rows,
                  .row_bytes = whole.row_bytes};
  if (!tensor.cut) return part;
  const UnitRange<Entries> range = range_of(*tensor.cut, plan, tp_rank);
  const unsigned dimension = dimension_of(tensor.cut->unit);
  MOXIE_CHECK(dimension < tensor.shape.size(), "a tensor has the dimension that is cut");
  const std::uint64_t entries = tensor.shape[dimension];
  MOXIE_CHECK(range.src.value <= entries && range.count.value <= entries - range.src.value,
              "a planned range lies inside its tensor");
  MOXIE_CHECK(range.count <= range.dst, "a planned range fits the part");
  part.tail = tensor.cut->tail;
  MOXIE_CHECK(part.tail == Tail::zero || tensor.dtype == DType::f32, "minus infinity is an f32");
  if (dimension == 0) {
    part.first_row = range.src.value;
    part.real_rows = range.count.value;
    part.rows = range.dst.value;
    return part;
  }
  const std::uint64_t entry_bytes = whole.row_bytes / entries;
  part.first_byte = range.src.value * entry_bytes;
  part.real_row_bytes = range.count.value * entry_bytes;
  part.row_bytes = range.dst.value * entry_bytes;
  return part;
}

Shape part_shape(const ModelTensor& tensor, const ShardPlan& plan) {
  Shape shape = tensor.shape;
  if (tensor.cut) shape[dimension_of(tensor.cut->unit)] = range_of(*tensor.cut, plan, 0).dst.value;
  return shape;
}

TensorRange source_of(const TensorPart& part, std::uint64_t first, std::uint64_t count) {
  const std::uint64_t real = first < part.real_rows ? std::min(count, part.real_rows - first) : 0;
  return {(part.first_row + first) * part.source_row_bytes, real * part.source_row_bytes};
}

void copy_rows(const TensorPart& part, std::span<const std::byte> source, std::uint64_t first,
               std::span<std::byte> out) {
  if (out.empty()) return;
  const std::uint64_t count = out.size() / part.row_bytes;
  MOXIE_CHECK(
      out.size() == count * part.row_bytes && first <= part.rows && count <= part.rows - first,
      "whole rows of the part are asked for");
  MOXIE_CHECK(part.real_rows <= part.rows && part.real_row_bytes <= part.row_bytes,
              "what is real of a part fits it");
  MOXIE_CHECK(part.first_byte <= part.source_row_bytes &&
                  part.real_row_bytes <= part.source_row_bytes - part.first_byte,
              "a part's row lies inside the source's");
  const std::uint64_t real = first < part.real_rows ? std::min(count, part.real_rows - first) : 0;
  MOXIE_CHECK(source.size() == source_of(part, first, count).bytes,
              "rows are copied from their source");
  if (real > 0 && part.real_row_bytes > 0) {
    const bool contiguous =
        part.real_row_bytes == part.row_bytes && part.real_row_bytes == part.source_row_bytes;
    const std::uint64_t runs = contiguous ? 1 : real;
    const std::uint64_t run_bytes = part.real_row_bytes * (contiguous ? real : 1);
    for (std::uint64_t run = 0; run < runs; ++run) {
      std::memcpy(out.data() + run * part.row_bytes,
                  source.data() + part.first_byte + run * part.source_row_bytes, run_bytes);
    }
  }
  if (part.real_row_bytes < part.row_bytes) {
    for (std::uint64_t row = 0; row < real; ++row) {
      fill_tail(out.subspan(row * part.row_bytes + part.real_row_bytes,
                            part.row_bytes - part.real_row_bytes),
                part.tail);
    }
  }
  fill_tail(out.subspan(real * part.row_bytes), part.tail);
}

std::byte tail_byte(Tail tail, std::uint64_t at) {
  return tail == Tail::zero ? std::byte{0} : kMinusInfinity[at % kMinusInfinity.size()];
}

std::size_t first_off_tail(std::span<const std::byte> bytes, Tail tail) {
  std::size_t at = 0;
  while (at < bytes.size() && bytes[at] == tail_byte(tail, at)) ++at;
  return at;
}

}  // namespace moxie
