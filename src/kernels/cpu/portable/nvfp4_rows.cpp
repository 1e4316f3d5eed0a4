// SPDX-License-Identifier: Apache-2.0
// Rows are independent but for the policy dynamic, which looks at all of them first.
#include "kernels/cpu/portable/nvfp4_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "formats/act_quant.hpp"

namespace moxie::cpu::portable {

namespace {

// Sums of whole numbers do not depend on the order.
void add(std::uint64_t& counter, std::uint64_t count) {
  if (count > 0) std::atomic_ref(counter).fetch_add(count, std::memory_order_relaxed);
}

float scalar_at(const std::byte* blob, std::uint64_t offset) {
  float value = 0;
  if (offset != BlobOffsets::kAbsent) std::memcpy(&value, blob + offset, sizeof value);
  return value;
}

}  // namespace

void load_x(const ExpertsArgs& args, std::uint64_t token, float* out) {
  const std::uint64_t hidden = args.shape.hidden;
  const std::uint64_t first = token * args.x.row_stride;
  if (args.x.dtype == DType::f32) {
    std::memcpy(out, static_cast<const float*>(args.x.data) + first, hidden * sizeof(float));
    return;
  }
  const auto* x = static_cast<const std::uint16_t*>(args.x.data) + first;
  for (std::uint64_t i = 0; i < hidden; ++i) out[i] = decode_bf16(x[i]);
}

void Nvfp4Rows::quantise_x(Team& team) const {
  quantise(team, {.values = work_.x,
                  .scales = work_.x_scale,
                  .count = has_x_of_slots(args_.shape) ? work_.slots.rows() : args_.tokens,
                  .width = args_.shape.hidden,
                  .is_x = true,
                  .stats = args_.stats == nullptr ? nullptr : &args_.stats->x});
}

void Nvfp4Rows::quantise_act(Team& team) const {
  quantise(team, {.values = work_.act,
                  .scales = work_.act_scale,
                  .count = work_.slots.rows(),
                  .width = args_.shape.inter,
                  .is_x = false,
                  .stats = args_.stats == nullptr ? nullptr : &args_.stats->act});
}

void Nvfp4Rows::quantise(Team& team, const Rows& rows) const {
  const ActScale policy = args_.shape.act_scale;
  const bool dynamic = policy == ActScale::dynamic;
  const auto amax_of = [&](std::uint64_t row) {
    return group_amax(rows.values + row * rows.width, rows.width);
  };
  if (dynamic) {
    team.for_each(rows.count, [&](std::uint64_t row) {
      const bool used = is_used(rows, row);
      if (used) load(rows, row);
      work_.amax[row] = used ? amax_of(row) : 0.0F;
    });
  }
  // Every member takes the maximum for itself, and only when it has a row: as long as a row waits,
  // no other stage writes to the same place.
  constexpr float kUnknown = -1.0F;
  float shared = kUnknown;
  team.for_each(rows.count, [&](std::uint64_t row) {
    if (!is_used(rows, row)) return;
    if (!dynamic) load(rows, row);
    switch (policy) {
      case ActScale::checkpoint:
        return quantise(rows, row, stored_scale(rows, row));
      case ActScale::warmup:
        return quantise(rows, row, rows.is_x ? args_.x_scale : args_.act_scale);
      case ActScale::dynamic:
        if (shared == kUnknown) shared = nvfp4_global(largest_amax(rows.count), args_.act_margin);
        return quantise(rows, row, shared);
      case ActScale::row:
        return quantise(rows, row, nvfp4_global(amax_of(row)));
    }
  });
  if (team.is_caller() && rows.stats != nullptr) note_range(rows);
}

void Nvfp4Rows::quantise(const Rows& rows, std::uint64_t row, float scale) const {
  const bool usable = is_act_scale(scale);
  const float global = usable ? scale : kNvfp4Fallback;
  float* values = rows.values + row * rows.width;
  Nvfp4Blocks blocks;
  quantise_nvfp4_row(values, rows.width, global, values, blocks);
  rows.scales[row] = global;
  if (!rows.is_x && args_.act_tap != nullptr) {
    float* tap = args_.act_tap + work_.slots.slot_of_row[row] * rows.width;
    std::transform(values, values + rows.width, tap, [&](float v) { return v * global; });
  }
  if (rows.stats == nullptr) return;
  add(rows.stats->blocks, divide_up(rows.width, act_group(ActFormat::nvfp4)));
  add(rows.stats->saturated, blocks.saturated);
  add(rows.stats->underflowed, blocks.underflowed);
  add(rows.stats->not_numbers, blocks.not_numbers);
  add(rows.stats->guarded, usable ? 0 : 1);
}

void Nvfp4Rows::note_range(const Rows& rows) const {
  ActStage& stats = *rows.stats;
  for (std::uint64_t row = 0; row < rows.count; ++row) {
    if (!is_used(rows, row)) continue;
    const float scale = rows.scales[row];
    stats.least_scale = stats.most_scale == 0 ? scale : std::min(stats.least_scale, scale);
    stats.most_scale = std::max(stats.most_scale, scale);
  }
}

std::uint64_t Nvfp4Rows::token_of(std::uint64_t x_row) const {
  return has_x_of_slots(args_.shape) ? work_.slots.token_of_row(x_row) : x_row;
}

bool Nvfp4Rows::is_used(const Rows& rows, std::uint64_t row) const {
  if (!rows.is_x || has_x_of_slots(args_.shape)) return true;
  const std::int32_t* first = work_.slots.row_of_slot + row * args_.shape.top_k;
  return std::any_of(first, first + args_.shape.top_k, [](std::int32_t r) { return r >= 0; });
}

void Nvfp4Rows::load(const Rows& rows, std::uint64_t row) const {
  if (rows.is_x) load_x(args_, token_of(row), rows.values + row * rows.width);
}

float Nvfp4Rows::largest_amax(std::uint64_t rows) const {
  return *std::max_element(work_.amax, work_.amax + rows);
}

// Gate and up read the same x: the larger scale clips neither more than it asks for.
float Nvfp4Rows::stored_scale(const Rows& rows, std::uint64_t row) const {
  const std::uint32_t* with0 = work_.slots.with0;
  const auto* next = std::upper_bound(with0, with0 + args_.shape.local_experts + 1, row);
  const auto local_expert = static_cast<std::uint64_t>(next - with0) - 1;
  const std::byte* blob = args_.weights.blobs + local_expert * args_.weights.stride;
  const BlobOffsets& at = args_.weights.offsets;
  if (!rows.is_x) return scalar_at(blob, at.down_act_mul);
  return std::max(scalar_at(blob, at.gate_act_mul), scalar_at(blob, at.up_act_mul));
}

}  // namespace moxie::cpu::portable
