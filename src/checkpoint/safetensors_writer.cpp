// SPDX-License-Identifier: Apache-2.0
// Header as published files have it: compact JSON, padded with spaces to a multiple of 8 bytes.
#include "checkpoint/safetensors_writer.hpp"

#include "base/checked.hpp"
#include "moxie/json.hpp"

namespace moxie {

std::uint64_t TensorEntry::bytes() const {
  std::uint64_t elems = 1;
  for (const std::uint64_t extent : shape) elems *= extent;
  if (dtype == DType::mxfp4_blocks) return elems / 32 * 17;
  if (dtype == DType::nvfp4_blocks) return elems / 64 * 36;
  return elems * bits_of(dtype) / 8;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<TensorEntry>& entries,
                                     std::size_t direct_bytes, std::uint64_t data_align)
    : file_(path, direct_bytes) {
  Json::Object members;
  members.push_back({"__metadata__", Json::object().set("format", "pt")});
  std::uint64_t offset = 0;
  for (const TensorEntry& entry : entries) {
    Json shape = Json::array();
    for (const std::uint64_t extent : entry.shape) shape.push_back(extent);
    Json offsets = Json::array();
    offsets.push_back(offset);
    offset += entry.bytes();
    offsets.push_back(offset);
    Json info;
    info.set("dtype", name_of(entry.dtype))
        .set("shape", std::move(shape))
        .set("data_offsets", std::move(offsets));
    members.push_back({entry.name, std::move(info)});
  }
  std::string header = Json(std::move(members)).dump_compact();
  std::string length(8, '\0');
  header.resize(round_up(length.size() + header.size(), data_align) - length.size(), ' ');
  for (unsigned i = 0; i < 8; ++i)
    length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xFFU);
  file_.write(length);
  file_.write(header);
  data_begin_ = file_.bytes();
  expected_bytes_ = data_begin_ + offset;
}

void SafetensorsWriter::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  file_.write_at(data_begin_ + offset, bytes);
  placed_bytes_ += bytes.size();
}

void SafetensorsWriter::commit() {
  MOXIE_CHECK(file_.bytes() + placed_bytes_ == expected_bytes_,
              "a safetensors file must hold exactly its announced bytes");
  file_.commit();
}

}  // namespace moxie
