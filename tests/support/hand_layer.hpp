// SPDX-License-Identifier: Apache-2.0
// Experts whose every code is set by hand, run straight through the kernel contract. Workspaces are
// poisoned, every buffer has guard bytes and the blobs lie at an odd address.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "formats/bf16.hpp"
#include "formats/block_format.hpp"
#include "kernels/contract.hpp"

namespace moxie::test {

enum class Half : std::uint8_t { gate, up, down };

// A buffer between guard bytes, every byte poisoned.
template <class Element>
class Guarded {
 public:
  explicit Guarded(std::size_t count, std::byte poison = std::byte{0xFF})
      : bytes_(count * sizeof(Element) + 2 * kGuard, poison), count_(count) {
    std::fill_n(bytes_.begin(), kGuard, kMark);
    std::fill(bytes_.end() - kGuard, bytes_.end(), kMark);
  }
  Element* data() { return reinterpret_cast<Element*>(bytes_.data() + kGuard); }
  const Element* data() const { return reinterpret_cast<const Element*>(bytes_.data() + kGuard); }
  std::vector<Element> values() const { return {data(), data() + count_}; }
  std::size_t size() const { return count_; }
  bool intact() const {
    const auto marked = [](std::byte b) { return b == kMark; };
    return std::all_of(bytes_.begin(), bytes_.begin() + kGuard, marked) &&
           std::all_of(bytes_.end() - kGuard, bytes_.end(), marked);
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;
  static constexpr std::byte kMark{0xA5};
  std::vector<std::byte> bytes_;
  std::size_t count_;
};

// All codes are 0, all scales and globals 1 until they are set.
class HandLayer {
 public:
  HandLayer(BlockFormat format, std::uint64_t experts, std::uint64_t hidden = 32,
            std::uint64_t inter = 32)
      : format_(format) {
    shape_.format = format;
    shape_.hidden = hidden;
    shape_.inter = inter;
    shape_.experts = shape_.local_experts = experts;
    shape_.top_k = 1;
    for (std::uint64_t expert = 0; expert < experts; ++expert)
      local_.push_back(static_cast<std::int32_t>(expert));
    std::uint64_t end = 0;
    const auto take = [&](std::uint64_t bytes) { return std::exchange(end, end + bytes); };
    const std::uint64_t group = scale_group(format);
    at_.gate = take(inter * hidden / 2);
    at_.up = take(inter * hidden / 2);
    at_.down = take(inter * hidden / 2);
    at_.gate_scale = take(inter * hidden / group);
    at_.up_scale = take(inter * hidden / group);
    at_.down_scale = take(inter * hidden / group);
    const std::byte one{format == BlockFormat::mxfp4 ? std::uint8_t{0x7F} : std::uint8_t{0x38}};
    if (block_spec(format).has_global) {
      at_.gate_mul = take(4);
      at_.up_mul = take(4);
      at_.down_mul = take(4);
    }
    biases_ = end;
    end += (2 * inter + hidden) * sizeof(float);
    stride_ = end + 3;  // no alignment is promised
    bytes_.resize(1 + experts * stride_);
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      std::byte* scales = blob(expert) + at_.gate_scale;
      std::fill_n(scales, 3 * inter * hidden / group, one);
      for (const Half half : {Half::gate, Half::up, Half::down}) global(expert, half, 1.0F);
    }
  }

  ExpertsShape& shape() { return shape_; }
  // Which local expert serves a global one; -1: another rank's.
  std::vector<std::int32_t>& local_of_expert() { return local_; }

  HandLayer& code(std::uint64_t expert, Half half, std::uint64_t row, std::uint64_t column,
                  unsigned code) {
    std::byte& pair = blob(expert)[codes_at(half) + (row * columns(half) + column) / 2];
    const unsigned shift = column % 2 * 4;
    pair = (pair & std::byte(0xF0U >> shift)) | std::byte(code << shift);
    return *this;
  }
  HandLayer& scale(std::uint64_t expert, Half half, std::uint64_t row, std::uint64_t group,
                   unsigned byte) {
    blob(expert)[scales_at(half) + row * (columns(half) / scale_group(format_)) + group] =
        std::byte(byte);
    return *this;
  }
  HandLayer& global(std::uint64_t expert, Half half, float value) {
    const std::uint64_t at = half == Half::gate ? at_.gate_mul
                             : half == Half::up ? at_.up_mul
                                                : at_.down_mul;
    if (at != BlobOffsets::kAbsent) std::memcpy(blob(expert) + at, &value, sizeof value);
    return *this;
  }
  // The experts have no gate.
  HandLayer& ungated() {
    at_.gate = at_.gate_scale = at_.gate_mul = BlobOffsets::kAbsent;
    return *this;
  }
  // From the first one on, the half has biases, the others 0.
  HandLayer& bias(std::uint64_t expert, Half half, std::uint64_t row, float value) {
    std::uint64_t& at = half == Half::gate ? at_.gate_bias
                        : half == Half::up ? at_.up_bias
                                           : at_.down_bias;
    const std::uint64_t before = half == Half::gate ? 0
                                 : half == Half::up ? shape_.inter
                                                    : 2 * shape_.inter;
    at = biases_ + before * sizeof(float);
    std::memcpy(blob(expert) + at + row * sizeof value, &value, sizeof value);
    return *this;
  }
  // Output column 0 is `value_code` times activation 0.
  HandLayer& down_one(std::uint64_t expert, unsigned value_code = 2) {
    return code(expert, Half::down, 0, 0, value_code);
  }

  // Reads the experts from elsewhere: local expert l at blobs + l * stride.
  HandLayer& read_from(const std::byte* blobs, std::uint64_t stride) {
    elsewhere_ = blobs;
    elsewhere_stride_ = stride;
    return *this;
  }
  std::span<const std::byte> blob_of(std::uint64_t expert) { return {blob(expert), stride_}; }

  // x is [tokens, hidden] f32, ids and weights [tokens, top_k]. Returns y [tokens, hidden].
  std::vector<float> run(const ExpertsKernel& kernel, const std::vector<float>& x,
                         const std::vector<std::int32_t>& ids, const std::vector<float>& weights,
                         unsigned threads = 2) {
    const std::uint64_t tokens = ids.size() / shape_.top_k;
    Guarded<float> y(tokens * shape_.hidden);
    Guarded<std::byte> workspace(kernel.workspace_bytes(shape_, tokens));
    flags = 0;
    ExpertsArgs args;
    args.shape = shape_;
    args.weights = {.blobs = elsewhere_ != nullptr ? elsewhere_ : bytes_.data() + 1,
                    .stride = elsewhere_ != nullptr ? elsewhere_stride_ : stride_,
                    .offsets = at_,
                    .local_of_expert = local_.data()};
    args.tokens = tokens;
    args.x = {.data = x.data(),
              .dtype = DType::f32,
              .rows = tokens,
              .cols = shape_.hidden,
              .row_stride = shape_.hidden};
    args.topk_ids = ids.data();
    args.topk_weights = weights.data();
    args.y = y.data();
    args.workspace = workspace.data();
    args.flags = &flags;
    args.threads = threads;
    kernel.run(args);
    EXPECT_TRUE(y.intact() && workspace.intact()) << "the kernel wrote outside its buffers";
    return y.values();
  }

  std::uint32_t flags = 0;

 private:
  std::byte* blob(std::uint64_t expert) { return bytes_.data() + 1 + expert * stride_; }
  std::uint64_t columns(Half half) const {
    return half == Half::down ? shape_.inter : shape_.hidden;
  }
  std::uint64_t codes_at(Half half) const {
    return half == Half::gate ? at_.gate : half == Half::up ? at_.up : at_.down;
  }
  std::uint64_t scales_at(Half half) const {
    return half == Half::gate ? at_.gate_scale : half == Half::up ? at_.up_scale : at_.down_scale;
  }

  BlockFormat format_;
  ExpertsShape shape_;
  BlobOffsets at_;
  std::uint64_t biases_ = 0;
  std::uint64_t stride_ = 0;
  std::vector<std::byte> bytes_;
  const std::byte* elsewhere_ = nullptr;
  std::uint64_t elsewhere_stride_ = 0;
  std::vector<std::int32_t> local_;
};

// One row of x with a single non-zero element.
inline std::vector<float> unit_x(std::uint64_t hidden, std::uint64_t at = 0, float value = 1.0F) {
  std::vector<float> x(hidden, 0.0F);
  x[at] = value;
  return x;
}

}  // namespace moxie::test
