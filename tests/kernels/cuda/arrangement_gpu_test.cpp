// SPDX-License-Identifier: Apache-2.0
// From a packed expert to the form in which a kernel reads it, and back, byte by byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/catalog_rig.hpp"

namespace moxie {
namespace {

using namespace test;

class KernelArrangement : public CatalogGpu {
 protected:
  void SetUp() override {
    CatalogGpu::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (kernel_->arrangement == nullptr)
      GTEST_SKIP() << entry().name << " reads experts as they are packed";
  }
  void arrange_and_restore(const ExpertsOptions& options) {
    const Experts experts = random_experts(options, random_);
    const ExpertsThere there(*kernel_, experts);
    EXPECT_TRUE(there.holds_all());
    for (std::uint64_t expert = 0; expert < options.local; ++expert) {
      const auto blob =
          std::span(experts.blobs).subspan(expert * experts.stride, experts.blob_bytes);
      const std::vector<std::byte> back = there.restored(expert);
      const auto [got, expected] = std::ranges::mismatch(back, blob);
      EXPECT_EQ(got, back.end()) << "byte " << got - back.begin() << " of expert " << expert
                                 << ", hidden " << options.hidden << ", inter " << options.inter;
    }
    EXPECT_TRUE(there.intact());
  }
};

TEST_P(KernelArrangement, GivesBackEveryByteOfEveryExpert) {
  for (const BlockFormat format : entry().formats) {
    for (const std::uint64_t hidden : {64U, 128U, 192U, 704U, 2112U, 2880U, 7680U}) {
      for (const std::uint64_t inter : {64U, 192U, 704U}) {
        for (const bool biases : {false, true}) {
          arrange_and_restore({.format = format,
                               .activation = hidden == 192 ? Activation::relu2 : Activation::silu,
                               .biases = biases,
                               .hidden = hidden,
                               .inter = inter,
                               .experts = 3,
                               .local = 2,
                               .top_k = 1});
        }
        if (HasFailure()) return;
      }
    }
  }
}

// The group scaled by 2^-127, alone among good ones, in each tensor and at each end of it.
TEST_P(KernelArrangement, TellsOfScalesThatItCanNotHold) {
  const ExpertsOptions options{.hidden = 192, .inter = 128, .experts = 2, .local = 1, .top_k = 1};
  const Experts good = random_experts(options, random_);
  const std::uint64_t groups = options.hidden * options.inter / 32;
  struct Tensor {
    std::uint64_t codes;
    std::uint64_t scales;
  };
  const BlobOffsets& at = good.at;
  for (const Tensor& tensor : {Tensor{at.gate, at.gate_scale}, Tensor{at.up, at.up_scale},
                               Tensor{at.down, at.down_scale}}) {
    for (const std::uint64_t group : {std::uint64_t{0}, groups / 2 + 1, groups - 1}) {
      Experts experts = good;  // codes of a group are 16 neighbouring bytes in every tensor
      const auto codes = std::span(experts.blobs).subspan(tensor.codes + group * 16, 16);
      experts.blobs[tensor.scales + group] = std::byte{0};
      for (const unsigned zero : {0x00U, 0x80U, 0x08U}) {  // +0 and -0
        std::ranges::fill(codes, static_cast<std::byte>(zero));
        EXPECT_TRUE(ExpertsThere(*kernel_, experts).holds_all()) << "group " << group;
      }
      for (const unsigned place : {0U, 7U, 15U}) {
        for (const unsigned byte : {0x01U, 0x10U, 0x90U, 0x0FU}) {
          std::ranges::fill(codes, std::byte{0});
          codes[place] = static_cast<std::byte>(byte);
          EXPECT_FALSE(ExpertsThere(*kernel_, experts).holds_all()) << "group " << group;
        }
      }
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, KernelArrangement, testing::ValuesIn(gpu_kernels()),
                         instance_name);

// For a tool that looks at every access.
class SmallKernelArrangement : public KernelArrangement {};

TEST_P(SmallKernelArrangement, GivesBackEveryByteOfEveryExpert) {
  for (const BlockFormat format : entry().formats)
    arrange_and_restore({.format = format,
                         .biases = true,
                         .hidden = 192,
                         .inter = 64,
                         .experts = 3,
                         .local = 2,
                         .top_k = 1});
}

INSTANTIATE_TEST_SUITE_P(Catalog, SmallKernelArrangement, testing::ValuesIn(gpu_kernels()),
                         instance_name);

}  // namespace
}  // namespace moxie
