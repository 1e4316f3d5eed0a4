// SPDX-License-Identifier: Apache-2.0
// The weights of one warp, copied step by step into its own ring in shared memory, always a fixed
// number of steps ahead of what it multiplies, across units, experts and products.
#pragma once

#include <cstdint>

#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/ptx.cuh"
#include "kernels/cuda/sm90/schedule.cuh"

namespace moxie::cuda::sm90 {

// Which part of a unit a warp has: one strip of it, and a range of its steps.
struct Part {
  std::uint32_t strip;  // in the unit
  std::uint32_t first_step;
  std::uint32_t steps;

  __device__ Part(const Sharing& sharing, const Product& product, std::uint32_t warp) {
    const std::uint32_t split = warp % sharing.splits;
    strip = warp / sharing.splits;
    first_step = split * product.steps / sharing.splits;
    steps = (split + 1) * product.steps / sharing.splits - first_step;
  }
};

// The ring has kDepth slots. A warp that has used a step calls refill(), which copies as many steps
// as are missing; fewer while the block's next chunk is not known yet.
template <BlockFormat kFormat, int kDepth>
class WeightStream {
 public:
  static constexpr std::uint32_t kStepBytes = step_bytes(kFormat);

  __device__ WeightStream(const Call& call, const Queue& queue, std::uint32_t ring)
      : call_(call), queue_(queue), ring_(ring), policy_(evict_first()), to_(ring), at_(ring) {}

  // Where the warp's next step lies, complete.
  __device__ __forceinline__ std::uint32_t wait() {
    if (missing_ == kDepth) refill();  // its chunk is known by now
    if (missing_ == 0) {
      wait_copies<kDepth - 1>();
    } else {
      wait_copies<0>();
    }
    __syncwarp();
    return at_;
  }
  // The step has been read by all lanes; the next one takes its place.
  __device__ __forceinline__ void used() {
    at_ = at_ + kStepBytes == ring_ + kDepth * kStepBytes ? ring_ : at_ + kStepBytes;
    ++missing_;
    __syncwarp();
    refill();
  }
  __device__ __forceinline__ void refill() {
    do {
      if (steps_left_ == 0 && !find_unit()) return;
      copy_step();
    } while (--missing_ > 0);
  }

 private:
  __device__ __forceinline__ void copy_step() {
    if (!finished_) {
      const std::uint32_t lane = threadIdx.x % 32;
      copy16(to_ + lane * 16, from_, policy_);
      copy16(to_ + 512 + lane * 16, from_ + 512, policy_);
      if constexpr (kFormat == BlockFormat::mxfp4) {
        if (lane < 4) copy16(to_ + 1024 + lane * 16, from_ + 1024, policy_);
      } else {
        copy4(to_ + 1024 + lane * 4, from_ + 1024 - lane * 12);
      }
      from_ += kStepBytes;
    }
    to_ = to_ + kStepBytes == ring_ + kDepth * kStepBytes ? ring_ : to_ + kStepBytes;
    --steps_left_;
    commit_copies();
  }

  // False while the next chunk is not known. Behind the last one come steps without bytes.
  __device__ bool find_unit() {
    while (unit_ == end_) {
      if (chunks_taken(queue_) <= next_) return false;
      const Chunk chunk = queue_.chunks[next_ % Queue::kSize];
      if (chunk.phase > kDown) {
        finished_ = true;
        steps_left_ = ~0U;
        return true;
      }
      ++next_;
      phase_ = chunk.phase;
      unit_ = chunk.unit;
      end_ = chunk.end;
      if (Part(call_.sharing[phase_], product(), threadIdx.x / 32).steps == 0) unit_ = end_;
    }
    const Part part(call_.sharing[phase_], product(), threadIdx.x / 32);
    const std::uint32_t units = call_.sharing[phase_].units;
    const std::uint32_t strips = kWarps / call_.sharing[phase_].splits;
    const std::uint32_t expert = call_.work.items[unit_ / units].expert;
    const std::uint32_t strip = unit_ % units * strips + part.strip;
    from_ = call_.args.weights.blobs + expert * call_.args.weights.stride + product().offset +
            strip * product().strip_bytes + part.first_step * kStepBytes + threadIdx.x % 32 * 16;
    steps_left_ = part.steps;
    ++unit_;
    return true;
  }
  __device__ const Product& product() const {
    return phase_ == kGateUp ? call_.experts.gate_up : call_.experts.down;
  }

  const Call& call_;
  const Queue& queue_;
  std::uint32_t ring_;
  std::uint64_t policy_;
  std::uint32_t to_;  // the next slot to fill
  std::uint32_t at_;  // and to read
  int missing_ = kDepth;
  const std::byte* from_ = nullptr;  // the lane's
  std::uint32_t steps_left_ = 0;     // of the unit
  bool finished_ = false;
  std::uint32_t phase_ = kGateUp;
  std::uint32_t unit_ = 0;
  std::uint32_t end_ = 0;
  std::uint32_t next_ = 0;  // chunk
};

}  // namespace moxie::cuda::sm90
