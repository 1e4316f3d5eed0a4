// SPDX-License-Identifier: Apache-2.0
// slots -> quantise -> gate and up, activation, requantisation -> down -> weighted combine.
//
// nvfp4 carries code * block scale through the products; the global scale of a row multiplies its
// finished sums. The values between the products are then quantised row by row, in a stage of their
// own: a global scale may need the whole row, or all of them.
#include "kernels/cpu/portable/experts.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/clock.hpp"
#include "base/parallel.hpp"
#include "formats/act_quant.hpp"
#include "kernels/cpu/portable/activation.hpp"
#include "kernels/cpu/portable/gemm.hpp"
#include "kernels/cpu/portable/nvfp4_rows.hpp"
#include "kernels/cpu/portable/workspace.hpp"

namespace moxie::cpu::portable {

namespace {

constexpr std::uint64_t kDownBlock = 32;  // rows of down in one work item
constexpr std::uint64_t kMaxBlock = 128;  // rows of gate and up in one work item, at most
// Below this many multiplications waking a thread costs more than it helps.
constexpr std::uint64_t kParallelWork = 200'000;

// Rows of gate and up in one work item. A whole activation group, so that the item can requantise
// what it computed.
constexpr std::uint64_t gate_up_block(ActFormat format) {
  return std::max<std::uint64_t>(32, act_group(format));
}
static_assert(gate_up_block(ActFormat::fp8) <= kMaxBlock &&
                  gate_up_block(ActFormat::fp8x2) <= kMaxBlock,
              "an item's results fit its buffer");

// nullptr for what the blob does not have.
const std::uint8_t* bytes_at(const std::byte* blob, std::uint64_t offset) {
  return offset == BlobOffsets::kAbsent ? nullptr
                                        : reinterpret_cast<const std::uint8_t*>(blob + offset);
}

float global_at(const std::byte* blob, std::uint64_t offset) {
  float value = 1.0F;
  if (offset != BlobOffsets::kAbsent) std::memcpy(&value, blob + offset, sizeof value);
  return value;
}

// One call of the kernel for one block format.
template <BlockFormat kFormat>
class ExpertsCall {
 public:
  explicit ExpertsCall(const ExpertsArgs& args) : args_(args), work_(carve(args)) {}

  void run() {
    mark_ = now_ns();
    build_slots(args_, work_.slots);
    add_time(Stage::slots);
    const std::uint64_t work = work_.slots.rows() * args_.shape.inter * args_.shape.hidden;
    parallel_team(work < kParallelWork ? 1 : args_.threads, [this](Team& team) {
      if (work_.slots.rows() > 0) run_experts(team);
      team.for_each(args_.tokens, [this](std::uint64_t token) { combine(token); });
      if (team.is_caller()) add_time(Stage::combine);
    });
  }

 private:
  void run_experts(Team& team) {
    if (nvfp4_) {
      nvfp4_rows_.quantise_x(team);
    } else {
      team.for_each(args_.tokens, [this](std::uint64_t token) { quantise(token); });
    }
    if (team.is_caller()) add_time(Stage::quantise);
    const std::uint64_t act_blocks = divide_up(args_.shape.inter, block_);
    team.for_each(work_.slots.active * act_blocks, [&](std::uint64_t item) {
      gate_up(active_expert(item / act_blocks), item % act_blocks * block_);
    });
    if (nvfp4_) nvfp4_rows_.quantise_act(team);
    if (team.is_caller()) add_time(Stage::gate_up);
    const std::uint64_t down_blocks = divide_up(args_.shape.hidden, kDownBlock);
    team.for_each(work_.slots.active * down_blocks, [&](std::uint64_t item) {
      down(active_expert(item / down_blocks), item % down_blocks * kDownBlock);
    });
    if (team.is_caller()) add_time(Stage::down);
  }

  // Called by one thread only.
  void add_time(Stage stage) {
    if (args_.trace == nullptr) return;
    const std::uint64_t now = now_ns();
    (*args_.trace)[stage] += now - mark_;
    mark_ = now;
  }

  [[nodiscard]] std::uint64_t active_expert(std::uint64_t index) const {
    return static_cast<std::uint64_t>(work_.slots.active_experts[index]);
  }
  [[nodiscard]] const std::byte* blob_of(std::uint64_t local_expert) const {
    return args_.weights.blobs + local_expert * args_.weights.stride;
  }

  // x of one token as fp32, quantised as the activation format says.
  void quantise(std::uint64_t token) {
    const std::uint64_t hidden = args_.shape.hidden;
    float* out = work_.x + token * hidden;
    load_x(args_, token, out);
    quantise_row(args_.shape.act_format, out, hidden, out);
  }

  // The activations of all rows of an expert in the columns [first, first + block_).
  void gate_up(std::uint64_t local_expert, std::uint64_t first) {
    const std::byte* blob = blob_of(local_expert);
    const BlobOffsets& at = args_.weights.offsets;
    const WeightRows up{.codes = bytes_at(blob, at.up),
                        .scales = bytes_at(blob, at.up_scale),
                        .columns = args_.shape.hidden,
                        .dequant_mul = global_at(blob, at.up_mul),
                        .bias = bytes_at(blob, at.up_bias)};
    const WeightRows gate{.codes = bytes_at(blob, at.gate),
                          .scales = bytes_at(blob, at.gate_scale),
                          .columns = args_.shape.hidden,
                          .dequant_mul = global_at(blob, at.gate_mul),
                          .bias = bytes_at(blob, at.gate_bias)};
    const std::uint64_t inter = args_.shape.inter;
    const std::uint64_t count = std::min(block_, inter - first);
    const std::uint64_t end = work_.slots.with0[local_expert + 1];
    for (std::uint64_t row = work_.slots.with0[local_expert]; row < end; row += kTile) {
      const std::uint64_t rows = std::min(kTile, end - row);
      XRows x;
      for (std::uint64_t r = 0; r < rows; ++r) {
        const std::uint64_t x_row =
            has_x_of_slots(args_.shape) ? row + r : work_.slots.token_of_row(row + r);
        x.rows[r] = work_.x + x_row * args_.shape.hidden;
        x.scales[r] = nvfp4_ ? work_.x_scale[x_row] : 1.0F;
      }
      if (gate.codes != nullptr) {
        gated(gate, up, first, count, x, row, rows);
      } else {
        ungated(up, first, count, x, row, rows);
      }
      if (nvfp4_) continue;
      for (std::uint64_t r = 0; r < rows; ++r) {
        float* act = work_.act + (row + r) * inter + first;
        quantise_row(args_.shape.act_format, act, count, act);
        if (args_.act_tap != nullptr) {
          std::copy_n(act, count, args_.act_tap + work_.slots.slot_of_row[row + r] * inter + first);
        }
      }
    }
  }

  // Rows of x that share a decoded chunk, and the global scales of each.
  struct XRows {
    std::array<const float*, kTile> rows;
    std::array<float, kTile> scales;
  };
  [[nodiscard]] const float* scales_at(const XRows& x) const {
    return nvfp4_ ? x.scales.data() : nullptr;
  }

  // Activations of `rows` rows from `row` on, columns [first, first + count): gate and up of one
  // column side by side.
  void gated(const WeightRows& gate, const WeightRows& up, std::uint64_t first, std::uint64_t count,
             const XRows& x, std::uint64_t row, std::uint64_t rows) {
    std::array<std::array<float, 2>, kTile> products;
    for (std::uint64_t column = first; column < first + count; ++column) {
      multiply_pair<kFormat>(gate, column, up, column, x.rows.data(), scales_at(x), rows,
                             products.data());
      for (std::uint64_t r = 0; r < rows; ++r)
        act_at(row + r, column) = activated(products[r][0], products[r][1]);
    }
  }

  // The same for functions without a gate: two columns of up side by side.
  void ungated(const WeightRows& up, std::uint64_t first, std::uint64_t count, const XRows& x,
               std::uint64_t row, std::uint64_t rows) {
    std::array<std::array<float, 2>, kTile> products;
    for (std::uint64_t column = first; column < first + count; column += 2) {
      multiply_pair<kFormat>(up, column, up, column + 1, x.rows.data(), scales_at(x), rows,
                             products.data());
      for (std::uint64_t r = 0; r < rows; ++r) {
        for (std::uint64_t side = 0; side < 2; ++side)
          act_at(row + r, column + side) = activated(0.0F, products[r][side]);
      }
    }
  }

  float& act_at(std::uint64_t row, std::uint64_t column) {
    return work_.act[row * args_.shape.inter + column];
  }
  [[nodiscard]] float activated(float gate, float up) const {
    return activate(args_.shape.activation, args_.shape.activation_limit, gate, up);
  }

  // The outputs of all rows of an expert in the columns [first, first + kDownBlock) of hidden.
  void down(std::uint64_t local_expert, std::uint64_t first) {
    const std::byte* blob = blob_of(local_expert);
    const BlobOffsets& at = args_.weights.offsets;
    const WeightRows weights{.codes = bytes_at(blob, at.down),
                             .scales = bytes_at(blob, at.down_scale),
                             .columns = args_.shape.inter,
                             .dequant_mul = global_at(blob, at.down_mul),
                             .bias = bytes_at(blob, at.down_bias)};
    const std::uint64_t hidden = args_.shape.hidden;
    const std::uint64_t last = std::min(first + kDownBlock, hidden);
    const std::uint64_t end = work_.slots.with0[local_expert + 1];
    for (std::uint64_t row = work_.slots.with0[local_expert]; row < end; row += kTile) {
      const std::uint64_t rows = std::min(kTile, end - row);
      std::array<const float*, kTile> act;
      for (std::uint64_t r = 0; r < rows; ++r) act[r] = work_.act + (row + r) * args_.shape.inter;
      std::array<std::array<float, 2>, kTile> products;
      for (std::uint64_t column = first; column < last; column += 2) {
        multiply_pair<kFormat>(weights, column, weights, column + 1, act.data(),
                               nvfp4_ ? work_.act_scale + row : nullptr, rows, products.data());
        for (std::uint64_t r = 0; r < rows; ++r)
          std::memcpy(work_.down + (row + r) * hidden + column, products[r].data(),
                      sizeof products[r]);
      }
    }
  }

  // Masked slots are skipped: what their rows hold, NaN included, must not reach y.
  void combine(std::uint64_t token) {
    const std::uint64_t hidden = args_.shape.hidden;
    float* y = args_.y + token * hidden;
    std::memset(y, 0, hidden * sizeof(float));
    for (std::uint64_t choice = 0; choice < args_.shape.top_k; ++choice) {
      const std::uint64_t slot = token * args_.shape.top_k + choice;
      const std::int32_t row = work_.slots.row_of_slot[slot];
      if (row < 0) continue;
      const float weight = args_.topk_weights[slot];
      const float* output = work_.down + static_cast<std::uint64_t>(row) * hidden;
      for (std::uint64_t i = 0; i < hidden; ++i) y[i] += weight * output[i];
    }
  }

  const ExpertsArgs& args_;
  Workspace work_;
  Nvfp4Rows nvfp4_rows_{args_, work_};
  const bool nvfp4_ = args_.shape.act_format == ActFormat::nvfp4;
  const std::uint64_t block_ = gate_up_block(args_.shape.act_format);
  std::uint64_t mark_ = 0;
};

void run(const ExpertsArgs& args) {
  if (args.shape.format == BlockFormat::mxfp4) {
    ExpertsCall<BlockFormat::mxfp4>(args).run();
  } else {
    ExpertsCall<BlockFormat::nvfp4>(args).run();
  }
}

std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
  return workspace_layout(shape, tokens).bytes;
}

}  // namespace

constinit const ExpertsKernel kExperts = {
    .run = run, .workspace_bytes = workspace_bytes, .supports = supports_activation};

}  // namespace moxie::cpu::portable
