// SPDX-License-Identifier: Apache-2.0
// A second packer, straight from the definition: one element at a time, in element coordinates, by
// tensor name. It shares no code with the first: no slice, unit, layout or copy helper.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/types.hpp"

namespace moxie::test {

class ReferencePacker {
 public:
  ReferencePacker(const Checkpoint& checkpoint, BlockFormat format, std::uint64_t hidden,
                  std::uint64_t inter, std::string prefix = "layers.0")
      : checkpoint_(checkpoint),
        nvfp4_(format == BlockFormat::nvfp4),
        group_(nvfp4_ ? 16 : 32),
        hidden_(hidden),
        inter_(inter),
        prefix_(std::move(prefix)) {}

  // Logical width: the axis over the ranks, up to whole scale groups.
  std::uint64_t local(std::uint64_t tp) const {
    std::uint64_t width = 0;
    while (width * tp < inter_) width += group_;
    return width;
  }

  // The blob of one expert on one rank.
  std::vector<std::byte> pack(std::uint64_t expert, std::uint64_t tp, std::uint64_t rank,
                              std::uint64_t align) {
    local_ = local(tp);
    kernel_ = 0;
    while (kernel_ < local_) kernel_ += align;
    rank_ = rank;
    stem_ = prefix_ + ".ffn.experts." + std::to_string(expert) + ".";
    blob_.clear();
    rows_of_codes("w1.weight");
    rows_of_codes("w3.weight");
    columns_of_codes("w2.weight");
    const std::string scale = nvfp4_ ? ".weight_scale" : ".scale";
    rows_of_scales("w1" + scale);
    rows_of_scales("w3" + scale);
    columns_of_scales("w2" + scale);
    if (nvfp4_) {
      for (const char* part : {".weight_scale_2", ".input_scale"}) {
        for (const char* name : {"w1", "w3", "w2"}) scalar(std::string(name) + part);
      }
    }
    while (blob_.size() % 64 != 0) blob_.push_back(std::byte{0});
    return blob_;
  }

 private:
  // Where element j of this rank lies on the whole axis; kNowhere for padding.
  static constexpr std::uint64_t kNowhere = ~std::uint64_t{0};
  std::uint64_t on_axis(std::uint64_t j) const {
    if (j >= local_) return kNowhere;
    const std::uint64_t global = rank_ * local_ + j;
    return global < inter_ ? global : kNowhere;
  }

  std::byte byte_of(const std::string& name, std::uint64_t at) const {
    const TensorInfo* tensor = checkpoint_.find(stem_ + name);
    if (tensor == nullptr) throw std::runtime_error("no tensor " + stem_ + name);
    if (at >= tensor->bytes) throw std::runtime_error("read past " + name);
    return checkpoint_.bytes(*tensor)[at];
  }
  // Code of element (row, column) of a matrix that is `width` elements wide.
  unsigned code(const std::string& name, std::uint64_t row, std::uint64_t column,
                std::uint64_t width) const {
    const std::uint64_t element = row * width + column;
    const auto pair = std::to_integer<unsigned>(byte_of(name, element / 2));
    return element % 2 == 0 ? pair % 16 : pair / 16;
  }
  void push_pair(unsigned even, unsigned odd) {
    blob_.push_back(static_cast<std::byte>(odd * 16 + even));
  }

  void rows_of_codes(const std::string& name) {
    for (std::uint64_t row = 0; row < kernel_; ++row) {
      const std::uint64_t from = on_axis(row);
      for (std::uint64_t column = 0; column < hidden_; column += 2) {
        push_pair(from == kNowhere ? 0 : code(name, from, column, hidden_),
                  from == kNowhere ? 0 : code(name, from, column + 1, hidden_));
      }
    }
  }
  void columns_of_codes(const std::string& name) {
    const auto at = [&](std::uint64_t row, std::uint64_t j) {
      const std::uint64_t from = on_axis(j);
      return from == kNowhere ? 0 : code(name, row, from, inter_);
    };
    for (std::uint64_t row = 0; row < hidden_; ++row) {
      for (std::uint64_t j = 0; j < kernel_; j += 2) push_pair(at(row, j), at(row, j + 1));
    }
  }
  // A group's scale is the scale of its first element.
  void rows_of_scales(const std::string& name) {
    for (std::uint64_t row = 0; row < kernel_; ++row) {
      const std::uint64_t from = on_axis(row);
      for (std::uint64_t column = 0; column < hidden_; column += group_) {
        blob_.push_back(from == kNowhere ? std::byte{0}
                                         : byte_of(name, (from * hidden_ + column) / group_));
      }
    }
  }
  void columns_of_scales(const std::string& name) {
    for (std::uint64_t row = 0; row < hidden_; ++row) {
      for (std::uint64_t j = 0; j < kernel_; j += group_) {
        const std::uint64_t from = on_axis(j);
        blob_.push_back(from == kNowhere ? std::byte{0}
                                         : byte_of(name, (row * inter_ + from) / group_));
      }
    }
  }
  void scalar(const std::string& name) {
    for (std::uint64_t i = 0; i < 4; ++i) blob_.push_back(byte_of(name, i));
  }

  const Checkpoint& checkpoint_;
  bool nvfp4_;
  std::uint64_t group_;
  std::uint64_t hidden_;
  std::uint64_t inter_;
  std::string prefix_;
  std::uint64_t local_ = 0;
  std::uint64_t kernel_ = 0;
  std::uint64_t rank_ = 0;
  std::string stem_;
  std::vector<std::byte> blob_;
};

}  // namespace moxie::test
