// SPDX-License-Identifier: Apache-2.0
// Experts and calls in device memory, at awkward addresses and between guards, for any kernel of
// the contract.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

#include "formats/bf16.hpp"
#include "kernels/contract.hpp"
#include "kernels/cuda/random_experts.hpp"
#include "support/device_memory.hpp"

namespace moxie::test {

// Experts as one kernel reads them.
class ExpertsThere {
 public:
  ExpertsThere(const ExpertsKernel& kernel, const Experts& experts)
      : kernel_(kernel),
        experts_(experts),
        packed_(std::span(experts.blobs), 1),
        local_(std::span(experts.local_of_expert)),
        problems_(sizeof(std::uint32_t), std::byte{0}) {
    EXPECT_EQ(kernel.prepare == nullptr ? 0 : kernel.prepare(), 0);
    if (kernel.arrangement == nullptr) return;
    stride_ = kernel.arrangement->stride(experts.shape, experts.at);
    arranged_.emplace(experts.shape.local_experts * stride_);
    for (std::uint64_t expert = 0; expert < experts.shape.local_experts; ++expert)
      finish(kernel.arrangement->arrange(args_of(expert, packed_, expert * experts.stride)));
  }
  ExpertsThere(const ExpertsThere&) = delete;
  ExpertsThere& operator=(const ExpertsThere&) = delete;

  [[nodiscard]] const ExpertsKernel& kernel() const { return kernel_; }
  [[nodiscard]] const Experts& experts() const { return experts_; }
  [[nodiscard]] ExpertsWeights weights() const {
    return {.blobs = arranged_ ? arranged_->data() : packed_.data(),
            .stride = arranged_ ? stride_ : experts_.stride,
            .offsets = experts_.at,
            .local_of_expert = local_.as<std::int32_t>()};
  }
  // What arranging said about the experts' values.
  [[nodiscard]] bool holds_all() const { return problems_.values<std::uint32_t>()[0] == 0; }
  // One expert's blob again; bytes that the kernel does not keep are 0xEE.
  [[nodiscard]] std::vector<std::byte> restored(std::uint64_t expert) const {
    const DeviceMemory blob(experts_.blob_bytes, std::byte{0xEE}, 3);
    finish(kernel_.arrangement->restore(args_of(expert, blob, 0)));
    EXPECT_TRUE(blob.intact());
    return blob.values<std::byte>();
  }
  [[nodiscard]] bool intact() const {
    return packed_.intact() && local_.intact() && problems_.intact() &&
           packed_.values<std::byte>() == experts_.blobs && (!arranged_ || arranged_->intact());
  }

 private:
  [[nodiscard]] ArrangeArgs args_of(std::uint64_t expert, const DeviceMemory& blob,
                                    std::uint64_t offset) const {
    return {.shape = experts_.shape,
            .offsets = experts_.at,
            .packed = blob.data() + offset,
            .arranged = arranged_->data() + expert * stride_,
            .problems = problems_.as<std::uint32_t>()};
  }
  static void finish(int code) {
    EXPECT_EQ(code, 0) << device::error_text(code);
    EXPECT_EQ(device::wait_for_default_stream(), 0);
  }

  const ExpertsKernel& kernel_;
  const Experts& experts_;
  DeviceMemory packed_, local_, problems_;
  std::optional<DeviceMemory> arranged_;
  std::uint64_t stride_ = 0;
};

// Where the result goes: to ExpertsArgs::y, or to rows of final_y that have gaps between them.
enum class Store : std::uint8_t { sum, f32_rows, bf16_rows };

struct CallOptions {
  std::byte poison{0xFF};
  unsigned max_sms = 0;
  Store store = Store::sum;
  const DeviceMemory* workspace = nullptr;  // of several calls; null: one of its own
  // A workspace that nobody has written, so that a tool that looks for reads of such memory sees
  // what a poisoned one hides.
  bool untouched = false;
};

class DeviceCall {
 public:
  DeviceCall(const ExpertsThere& there, const ExpertsCall& call, const CallOptions& options = {})
      : there_(there),
        tokens_(call.tokens),
        store_(options.store),
        x_(std::span(call.x), call.form.shift * elem_bytes(call.form.type)),
        ids_(std::span(call.ids)),
        weights_(std::span(call.weights)),
        y_(call.tokens * y_stride() * y_bytes(), options.poison),
        tap_(call.ids.size() * shape().inter * sizeof(float)),
        flags_(sizeof(std::uint32_t), std::byte{0}),
        stats_(sizeof(ActStats), std::byte{0}),
        poison_(options.poison),
        args_(common_args(there.experts(), call)) {
    clear_outputs(call.ids.size());
    args_.weights = there.weights();
    args_.x.data = x_.data();
    args_.topk_ids = ids_.as<std::int32_t>();
    args_.topk_weights = weights_.as<float>();
    if (store_ == Store::sum) {
      args_.y = y_.as<float>();
    } else {
      args_.final_y = {.data = y_.data(),
                       .dtype = store_ == Store::bf16_rows ? DType::bf16 : DType::f32,
                       .rows = tokens_,
                       .cols = shape().hidden,
                       .row_stride = y_stride()};
    }
    args_.act_tap = tap_.as<float>();
    args_.stats = stats_.as<ActStats>();
    args_.flags = flags_.as<std::uint32_t>();
    args_.max_sms = options.max_sms;
    args_.launch_error = &launch_error_;
    const std::uint64_t bytes = there.kernel().workspace_bytes(shape(), tokens_);
    if (options.workspace != nullptr) {
      EXPECT_LE(bytes, options.workspace->span().size());
      args_.workspace = options.workspace->data();
    } else if (options.untouched) {
      untouched_ = device::Buffer(bytes);
      args_.workspace = untouched_.data();
    } else {
      workspace_.emplace(bytes, options.poison, 1);
      args_.workspace = workspace_->data();
    }
  }
  DeviceCall(const DeviceCall&) = delete;
  DeviceCall& operator=(const DeviceCall&) = delete;

  // Other inputs of the same extents at the same addresses; no result of the last call is left.
  void replace(const ExpertsCall& call) {
    x_.put(std::span(call.x));
    ids_.put(std::span(call.ids));
    weights_.put(std::span(call.weights));
    clear_outputs(call.ids.size());
  }
  // A call, without the values between the products where nobody looks at them.
  void launch(const device::Stream& stream) {
    args_.stream = stream.handle();
    there_.kernel().run(args_);
    EXPECT_EQ(launch_error_, 0) << device::error_text(launch_error_);
  }
  void look_away() { args_.act_tap = nullptr; }

  [[nodiscard]] ExpertsResult result() const {
    for (const DeviceMemory* memory : {&x_, &ids_, &weights_, &y_, &tap_, &flags_, &stats_})
      EXPECT_TRUE(memory->intact()) << "the kernel wrote outside a buffer";
    EXPECT_TRUE(!workspace_ || workspace_->intact()) << "the kernel wrote outside its workspace";
    return {.y = dense_y(),
            .tap = tap_.values<float>(),
            .flags = flags_.values<std::uint32_t>()[0],
            .stats = stats_.values<ActStats>()[0]};
  }

 private:
  static constexpr std::uint64_t kGap = 5;
  static std::uint64_t elem_bytes(DType type) { return bits_of(type) / 8; }
  [[nodiscard]] const ExpertsShape& shape() const { return there_.experts().shape; }
  [[nodiscard]] std::uint64_t y_stride() const {
    return shape().hidden + (store_ == Store::sum ? 0 : kGap);
  }
  [[nodiscard]] std::uint64_t y_bytes() const { return store_ == Store::bf16_rows ? 2 : 4; }

  void clear_outputs(std::size_t slots) {
    const std::vector<std::byte> y(tokens_ * y_stride() * y_bytes(), poison_);
    const std::vector<float> tap(slots * shape().inter, kTapMark);
    const std::vector<std::byte> zeros(sizeof(ActStats));
    y_.put(std::span(y));
    tap_.put(std::span(tap));
    flags_.put(std::span(zeros).first(sizeof(std::uint32_t)));
    stats_.put(std::span(zeros));
  }
  // y as it is stored, in f32; what lies between the rows must be as it was.
  [[nodiscard]] std::vector<float> dense_y() const {
    const std::uint64_t hidden = shape().hidden;
    const std::vector<std::byte> bytes = y_.values<std::byte>();
    std::vector<float> y(tokens_ * hidden);
    for (std::uint64_t token = 0; token < tokens_; ++token) {
      const std::byte* row = bytes.data() + token * y_stride() * y_bytes();
      for (std::uint64_t i = 0; i < hidden; ++i) {
        float& to = y[token * hidden + i];
        if (store_ != Store::bf16_rows) {
          std::memcpy(&to, row + i * sizeof(float), sizeof(float));
          continue;
        }
        std::uint16_t narrow = 0;
        std::memcpy(&narrow, row + i * sizeof narrow, sizeof narrow);
        to = decode_bf16(narrow);
      }
      EXPECT_TRUE(std::all_of(row + hidden * y_bytes(), row + y_stride() * y_bytes(),
                              [&](std::byte b) { return b == poison_; }))
          << "written between the rows of y";
    }
    return y;
  }

  const ExpertsThere& there_;
  std::uint64_t tokens_;
  Store store_;
  DeviceMemory x_, ids_, weights_, y_, tap_, flags_, stats_;
  std::optional<DeviceMemory> workspace_;
  device::Buffer untouched_;
  std::byte poison_;
  ExpertsArgs args_;
  int launch_error_ = 0;
};

inline ExpertsResult run_on_device(const ExpertsThere& there, const ExpertsCall& call,
                                   const CallOptions& options = {}) {
  DeviceCall made(there, call, options);
  const device::Stream stream;
  made.launch(stream);
  stream.wait();
  return made.result();
}

}  // namespace moxie::test
