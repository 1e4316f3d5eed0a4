// SPDX-License-Identifier: Apache-2.0
// Every CPU kernel of the catalog that this machine runs against the reference in double precision,
// with buffers that have guards and workspaces that hold poison.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "formats/band_order.hpp"
#include "formats/bf16.hpp"
#include "kernels/cuda/judged_experts.hpp"
#include "kernels/registry/registry.hpp"

namespace moxie {
namespace {

using namespace test;

constexpr BlockFormat kFormats[] = {BlockFormat::mxfp4, BlockFormat::nvfp4};
constexpr Activation kActivations[] = {Activation::silu,       Activation::clamped_swiglu,
                                       Activation::oai_swiglu, Activation::situ,
                                       Activation::relu2,      Activation::gelu_tanh};
// Around the rows that share a decoded tile (32) and the groups of them (4).
constexpr std::uint64_t kTokens[] = {0, 2, 3, 4, 5, 7, 31, 32, 33, 70};

// The same experts as the kernel's layout has them.
Experts laid_out(const Experts& experts, LayoutKind kind) {
  Experts made = experts;
  if (kind == LayoutKind::linear) return made;
  const ExpertsShape& shape = experts.shape;
  const auto arrange = [&](std::byte* matrix, std::uint64_t rows, std::uint64_t row_bytes,
                           auto to_band) {
    std::vector<std::byte> copy(kBandRows * row_bytes);
    for (std::uint64_t row = 0; row < rows; row += kBandRows) {
      std::memcpy(copy.data(), matrix + row * row_bytes, copy.size());
      to_band(copy.data(), row_bytes, row_bytes, matrix + row * row_bytes);
    }
  };
  for (std::uint64_t expert = 0; expert < shape.local_experts; ++expert) {
    std::byte* blob = made.blobs.data() + expert * made.stride;
    const BlobOffsets& at = made.at;
    const auto matrix = [&](std::uint64_t codes, std::uint64_t scales, std::uint64_t rows,
                            std::uint64_t columns) {
      if (codes == BlobOffsets::kAbsent) return;
      arrange(blob + codes, rows, columns / 2, codes_to_band);
      arrange(blob + scales, rows, columns / scale_group(shape.format), scales_to_band);
    };
    matrix(at.gate, at.gate_scale, shape.inter, shape.hidden);
    matrix(at.up, at.up_scale, shape.inter, shape.hidden);
    matrix(at.down, at.down_scale, shape.hidden, shape.inter);
  }
  return made;
}

class CpuKernel : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const KernelEntry& entry : kernel_catalog()) {
      if (entry.name == GetParam()) entry_ = &entry;
    }
    ASSERT_NE(entry_, nullptr);
    const std::string missing = missing_features(*entry_, host_cpu().features);
    if (!entry_->built) GTEST_SKIP() << "not built for this architecture";
    if (!missing.empty()) GTEST_SKIP() << "this machine lacks " << missing;
    kernel_ = find_experts_kernel(entry_->name);
    ASSERT_NE(kernel_, nullptr);
    seed_ = std::random_device{}();
    random_.seed(seed_);
    RecordProperty("seed", std::to_string(seed_));
  }

  [[nodiscard]] std::string trace(const ExpertsShape& shape, std::uint64_t tokens,
                                  int ids = 0) const {
    return "seed " + std::to_string(seed_) + ", " + std::string(name_of(shape.format)) + ", " +
           std::string(name_of(shape.act_format)) + ", " + std::string(name_of(shape.activation)) +
           ", tokens " + std::to_string(tokens) + ", ids " + std::to_string(ids);
  }

  // Runs the kernel on a copy of the experts in its own layout.
  ExpertsResult run(const Experts& experts, const ExpertsCall& call, unsigned threads = 2,
                    std::byte poison = std::byte{0xFF}) const {
    return run_on_host(laid_out(experts, entry_->layout), call,
                       {.kernel = kernel_, .threads = threads, .poison = poison});
  }

  // Calls body(options) for every pair of formats that the kernel takes.
  template <class Body>
  void for_formats(const Body& body) {
    for (const BlockFormat format : kFormats) {
      for (const ActFormat act : entry_->act_formats) {
        body(ExpertsOptions{.format = format, .act_format = act, .act_scale = ActScale::row});
        if (HasFatalFailure()) return;
      }
    }
  }

  const KernelEntry* entry_ = nullptr;
  const ExpertsKernel* kernel_ = nullptr;
  std::uint64_t seed_ = 0;
  std::mt19937_64 random_;
};

TEST_P(CpuKernel, IsWithinTheBoundForEveryRoutingAndNumberOfTokens) {  // K-08, K-09, K-10
  for_formats([&](ExpertsOptions options) {
    const Experts experts = random_experts(options, random_);
    const auto check = [&](std::uint64_t tokens, Ids ids) {
      SCOPED_TRACE(trace(experts.shape, tokens, static_cast<int>(ids)));
      const ExpertsCall call = random_call(experts.shape, tokens, ids, random_);
      expect_within_bound(run(experts, call), experts, call, *entry_);
    };
    for (const Ids ids : kAllIds) check(1, ids);
    for (const Ids ids : kAllIds) check(6, ids);
    // One expert that gets all rows; what does not depend on their number is tested elsewhere.
    const bool tiles = entry_->layout == LayoutKind::cpu_tiles;
    for (const std::uint64_t tokens : kTokens) {
      if (tiles || tokens < 8) check(tokens, Ids::one);
    }
  });
}

TEST_P(CpuKernel, IsWithinTheBoundForEveryActivationFunctionAndWithBiases) {
  for_formats([&](ExpertsOptions options) {
    for (const Activation activation : kActivations) {
      for (const bool biases : {false, true}) {
        options.activation = activation;
        options.biases = biases;
        const Experts experts = random_experts(options, random_);
        SCOPED_TRACE(trace(experts.shape, 3));
        const ExpertsCall call = random_call(experts.shape, 3, Ids::uniform, random_);
        expect_within_bound(run(experts, call), experts, call, *entry_);
      }
    }
  });
}

TEST_P(CpuKernel, IsWithinTheBoundForWidthsAroundABandAndATile) {
  for_formats([&](ExpertsOptions options) {
    for (const std::uint64_t hidden : {32U, 96U, 1056U}) {
      for (const std::uint64_t inter : {32U, 64U, 352U}) {
        options.hidden = hidden;
        options.inter = inter;
        const Experts experts = random_experts(options, random_);
        SCOPED_TRACE(trace(experts.shape, 2) + ", hidden " + std::to_string(hidden) + ", inter " +
                     std::to_string(inter));
        const ExpertsCall call = random_call(experts.shape, 2, Ids::one, random_);
        expect_within_bound(run(experts, call), experts, call, *entry_);
      }
    }
  });
}

TEST_P(CpuKernel, GivesATokenTheSameBitsInEveryBatchAndWithEveryNumberOfThreads) {  // K-11, K-12
  for_formats([&](ExpertsOptions options) {
    const Experts experts = random_experts(options, random_);
    const ExpertsCall call = random_call(experts.shape, 37, Ids::zipf, random_);
    const ExpertsResult all = run(experts, call, 1);
    SCOPED_TRACE(trace(experts.shape, 37));
    for (const unsigned threads : {2U, 3U, 5U}) expect_same(run(experts, call, threads), all);
    for (const int poison : {0x00, 0x7F})
      expect_same(run(experts, call, 2, static_cast<std::byte>(poison)), all);
    const std::uint64_t hidden = experts.shape.hidden;
    const std::size_t elem = bits_of(call.x_type) / 8;
    for (const std::uint64_t token : {0U, 17U, 36U}) {
      ExpertsCall alone = call;
      alone.tokens = 1;
      alone.x.assign(
          call.x.begin() + static_cast<std::ptrdiff_t>(token * call.x_stride * elem),
          call.x.begin() + static_cast<std::ptrdiff_t>((token + 1) * call.x_stride * elem));
      const std::uint64_t first = token * experts.shape.top_k;
      alone.ids.assign(call.ids.begin() + static_cast<std::ptrdiff_t>(first),
                       call.ids.begin() + static_cast<std::ptrdiff_t>(first + experts.shape.top_k));
      alone.weights.assign(
          call.weights.begin() + static_cast<std::ptrdiff_t>(first),
          call.weights.begin() + static_cast<std::ptrdiff_t>(first + experts.shape.top_k));
      const std::vector<float> row(
          all.y.begin() + static_cast<std::ptrdiff_t>(token * hidden),
          all.y.begin() + static_cast<std::ptrdiff_t>((token + 1) * hidden));
      expect_same_bits(run(experts, alone).y, row, "y of one token alone");
    }
  });
}

// The same bits as the sum, rounded once where they are bf16; what lies between rows stays.
TEST_P(CpuKernel, WritesEveryFormOfYAlike) {
  if (!kernel_->stores_y) GTEST_SKIP() << "its sums are stored by the layer";
  constexpr std::uint64_t kFew = 5;
  constexpr std::uint64_t kGap = 7;
  for_formats([&](ExpertsOptions options) {
    options.hidden = 1120;  // more than one chunk of columns
    const Experts experts = random_experts(options, random_);
    ExpertsCall call = random_call(experts.shape, kFew, Ids::masked, random_);
    call.weights[0] = std::numeric_limits<float>::quiet_NaN();
    SCOPED_TRACE(trace(experts.shape, kFew));
    const std::vector<float> sums = run(experts, call).y;
    const std::uint64_t stride = options.hidden + kGap;
    const Experts own = laid_out(experts, entry_->layout);
    for (const DType type : {DType::f32, DType::bf16}) {
      const std::uint64_t bytes = bits_of(type) / 8;
      constexpr std::byte kMark{0x5A};
      std::vector<std::byte> y(kFew * stride * bytes, kMark);
      run_on_host(own, call,
                  {.kernel = kernel_,
                   .final_y = {.data = y.data(),
                               .dtype = type,
                               .rows = kFew,
                               .cols = options.hidden,
                               .row_stride = stride}});
      std::vector<std::byte> due(y.size(), kMark);
      for (std::uint64_t i = 0; i < sums.size(); ++i) {
        const std::uint16_t narrow = encode_bf16(sums[i]);
        const void* value = type == DType::f32 ? static_cast<const void*>(&sums[i]) : &narrow;
        std::memcpy(due.data() + (i / options.hidden * stride + i % options.hidden) * bytes, value,
                    bytes);
      }
      EXPECT_EQ(y == due, true) << name_of(type);
    }
  });
}

TEST_P(CpuKernel, KeepsWhatIsNoNumberInItsOwnToken) {  // pit48, pit57
  for_formats([&](ExpertsOptions options) {
    const Experts experts = random_experts(options, random_);
    for (const std::uint32_t bits : {0x7FC00000U, 0x7F800000U, 0xFF800000U}) {
      const ExpertsCall clean =
          random_call(experts.shape, 6, Ids::one, random_, {.type = DType::f32});
      ExpertsCall call = clean;
      std::memcpy(call.x.data() + (3 * call.x_stride + 17) * sizeof(float), &bits, sizeof bits);
      const ExpertsResult expected = run(experts, clean);
      const ExpertsResult got = run(experts, call);
      SCOPED_TRACE(trace(experts.shape, 6) + ", bits " + std::to_string(bits));
      const std::uint64_t hidden = experts.shape.hidden;
      std::uint64_t finite = 0;
      for (std::uint64_t i = 0; i < got.y.size(); ++i) {
        if (i / hidden == 3) {
          finite += std::isfinite(got.y[i]) ? 1 : 0;
        } else {
          ASSERT_EQ(got.y[i], expected.y[i]) << i;
        }
      }
      // An Inf meets codes that are 0 and becomes NaN; formats that quantise may clip it.
      if (std::isnan(std::bit_cast<float>(bits))) {
        EXPECT_EQ(finite, 0U);
      }
    }
  });
}

TEST_P(CpuKernel, IsWithinTheBoundWhereNumbersAreTiny) {
  for_formats([&](ExpertsOptions options) {
    options.format = BlockFormat::mxfp4;
    Experts experts = random_experts(options, random_);
    // Scales over the whole range of E8M0 but for what overflows.
    for (std::uint64_t expert = 0; expert < experts.shape.local_experts; ++expert) {
      for (const std::uint64_t first : {experts.at.gate_scale, experts.at.up_scale}) {
        std::byte* scales = experts.blobs.data() + expert * experts.stride + first;
        const std::uint64_t count = experts.shape.inter * experts.shape.hidden / 32;
        for (std::uint64_t i = 0; i < count; ++i)
          scales[i] = static_cast<std::byte>(random_() % 127);
      }
    }
    for (const int exponent : {-149, -140, -130, -126, -100, -60, 0}) {
      ExpertsCall call = random_call(experts.shape, 5, Ids::uniform, random_, {.type = DType::f32});
      for (std::size_t at = 0; at + sizeof(float) <= call.x.size(); at += sizeof(float)) {
        const float value = std::ldexp(static_cast<float>(static_cast<int>(random_() % 33) - 16),
                                       exponent + static_cast<int>(random_() % 6));
        std::memcpy(call.x.data() + at, &value, sizeof value);
      }
      SCOPED_TRACE(trace(experts.shape, 5) + ", exponent " + std::to_string(exponent));
      expect_within_bound(run(experts, call), experts, call, *entry_);
    }
  });
}

std::vector<std::string> cpu_kernels() {
  std::vector<std::string> names;
  for (const KernelEntry& entry : kernel_catalog()) {
    if (entry.target == Target::cpu) names.emplace_back(entry.name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Catalog, CpuKernel, testing::ValuesIn(cpu_kernels()),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace moxie
