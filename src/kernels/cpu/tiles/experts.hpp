// SPDX-License-Identifier: Apache-2.0
// slots -> x to records -> gate and up, activation, records again -> down -> weighted combine, for
// any products over bands. Included inside a target region.
//
// One list of work over all active experts, handed out in the order of addresses. An item of the
// first product is one tile of 32 columns of the intermediate axis, which is an activation group,
// so that whoever computes it can quantise it; an item of the second is two bands of hidden.
#pragma once

#include "kernels/cpu/tiles/activate_lanes.hpp"
#include "kernels/cpu/tiles/band.hpp"

namespace moxie::cpu::tiles {

// Products give kUnit and multiply(); Quantise fills their Record.
template <class Simd, class Products, class Quantise>
class ExpertsCall {
 public:
  using Record = typename Products::Record;

  explicit ExpertsCall(const ExpertsArgs& args)
      : args_(args),
        work_(Workspace<Products>::carve(args)),
        x_tiles_(args.shape.hidden / kTileColumns),
        act_tiles_(args.shape.inter / kTileColumns),
        chunks_(divide_up(x_tiles_, kChunkTiles)),
        prefetch_(prefetch_of_processor()),
        mark_(now_ns()) {}

  void run() {
    portable::build_slots(args_, work_.slots);
    add_time(Stage::slots);
    // Below this many multiplications waking a thread costs more than it helps.
    constexpr std::uint64_t kParallelWork = 1'000'000;
    const std::uint64_t work = work_.slots.rows() * args_.shape.inter * args_.shape.hidden;
    parallel_team(work < kParallelWork ? 1 : args_.threads, [this](Team& team) {
      if (work_.slots.rows() > 0) run_experts(team);
      team.for_each(args_.tokens * chunks_, [this](std::uint64_t item) {
        combine(item / chunks_, item % chunks_ * kChunkTiles);
      });
      if (team.is_caller()) add_time(Stage::combine);
    });
  }

 private:
  static constexpr std::uint64_t kBandsOfTile = kTileColumns / kBandRows;
  // Tiles of gate and then of up that are one stream each; their sums wait on the stack.
  static constexpr std::uint64_t kMostTiles = 8;
  // Tiles of hidden in one item of what is done token by token.
  static constexpr std::uint64_t kChunkTiles = 32;

  // One matrix of an expert.
  struct Matrix {
    const std::uint8_t* codes;   // null: the expert has none
    const std::uint8_t* scales;  // bands of both
    std::uint64_t columns;
    float dequant_mul;
    const std::byte* bias;  // f32, one a row; null: none

    [[nodiscard]] std::uint64_t code_bytes(std::uint64_t rows) const {
      return rows * (columns / 2);
    }
    [[nodiscard]] std::uint64_t scale_bytes(std::uint64_t rows) const {
      return rows * (columns / block_spec(Products::kBlockFormat).group_elems);
    }
    [[nodiscard]] Stream from(std::uint64_t row) const {
      return {.codes = codes + code_bytes(row), .scales = scales + scale_bytes(row)};
    }
    // The two bands from `row` on; `next` is the place that is read after them, where that is not
    // what lies behind.
    [[nodiscard]] BandPair bands(std::uint64_t row, const Prefetch& prefetch,
                                 const Stream& next) const {
      return {.at = from(row),
              .columns = columns,
              .prefetch = prefetch,
              .code_bytes = code_bytes(kBandRows),
              .scale_bytes = scale_bytes(kBandRows),
              .next = next};
    }
    // The finished sums of a band's rows.
    void finish(float* sums, std::uint64_t row) const {
      for (std::uint64_t lane = 0; lane < kBandRows; ++lane)
        sums[lane] = sums[lane] * Products::kUnit * dequant_mul;
      if (bias == nullptr) return;
      float values[kBandRows];
      std::memcpy(values, bias + row * sizeof(float), sizeof values);
      for (std::uint64_t lane = 0; lane < kBandRows; ++lane) sums[lane] += values[lane];
    }
  };

  void run_experts(Team& team) {
    team.for_each(args_.tokens * chunks_, [this](std::uint64_t item) {
      quantise(item / chunks_, item % chunks_ * kChunkTiles);
    });
    if (team.is_caller()) add_time(Stage::quantise);
    for_blocks(team, act_tiles_, kMostTiles,
               [this](const Block& at, const Block& next) { gate_up(at, next); });
    if (team.is_caller()) add_time(Stage::gate_up);
    for_blocks(team, x_tiles_, x_tiles_,
               [this](const Block& at, const Block& next) { down(at, next); });
    if (team.is_caller()) add_time(Stage::down);
  }

  // Neighbouring tiles of an axis of one expert.
  struct Block {
    std::uint64_t expert;
    std::uint64_t first;
    std::uint64_t end;
  };

  // Calls body(block, next) for all tiles of an axis of all active experts, in the order of their
  // addresses and at most `most` at once; `next` is what the same thread gets then, empty where
  // that is not known.
  template <class Body>
  void for_blocks(Team& team, std::uint64_t tiles, std::uint64_t most, const Body& body) const {
    const auto block = [&](std::uint64_t item, std::uint64_t end) {
      const std::uint64_t first = item % tiles;
      const std::uint64_t room = tiles - first < most ? tiles - first : most;
      const std::uint64_t count = end - item < room ? end - item : room;
      return count == 0 ? Block{0, 0, 0} : Block{active_expert(item / tiles), first, first + count};
    };
    team.for_ranges(work_.slots.active * tiles, args_.threads,
                    [&](std::uint64_t first, std::uint64_t end) {
                      Block now = block(first, end);
                      for (std::uint64_t item = first; item < end;) {
                        item += now.end - now.first;
                        const Block next = item < end ? block(item, end) : Block{0, 0, 0};
                        body(now, next);
                        now = next;
                      }
                    });
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

  [[nodiscard]] Matrix matrix(std::uint64_t local_expert, std::uint64_t codes, std::uint64_t scales,
                              std::uint64_t mul, std::uint64_t bias, std::uint64_t columns) const {
    const std::byte* blob = args_.weights.blobs + local_expert * args_.weights.stride;
    const auto at = [blob](std::uint64_t offset) {
      return offset == BlobOffsets::kAbsent ? nullptr : blob + offset;
    };
    Matrix made = {.codes = reinterpret_cast<const std::uint8_t*>(at(codes)),
                   .scales = reinterpret_cast<const std::uint8_t*>(at(scales)),
                   .columns = columns,
                   .dequant_mul = 1,
                   .bias = at(bias)};
    if (const std::byte* value = at(mul)) std::memcpy(&made.dequant_mul, value, sizeof(float));
    return made;
  }

  [[nodiscard]] std::uint64_t chunk_end(std::uint64_t tile) const {
    return tile + kChunkTiles < x_tiles_ ? tile + kChunkTiles : x_tiles_;
  }

  // A chunk of one token.
  void quantise(std::uint64_t token, std::uint64_t begin) {
    const std::uint64_t first = token * args_.x.row_stride;
    Record* to = work_.x + token * records_of(x_tiles_);
    for (std::uint64_t tile = begin; tile < chunk_end(begin); ++tile) {
      const std::uint64_t at = first + tile * kTileColumns;
      if (args_.x.dtype == DType::f32) {
        float values[kTileColumns];
        std::memcpy(values, static_cast<const float*>(args_.x.data) + at, sizeof values);
        Quantise::record(values, to[tile]);
      } else {
        std::uint16_t values[kTileColumns];
        std::memcpy(values, static_cast<const std::uint16_t*>(args_.x.data) + at, sizeof values);
        Quantise::record(values, to[tile]);
      }
    }
  }

  [[nodiscard]] Matrix gate_of(std::uint64_t expert) const {
    const BlobOffsets& o = args_.weights.offsets;
    return matrix(expert, o.gate, o.gate_scale, o.gate_mul, o.gate_bias, args_.shape.hidden);
  }
  [[nodiscard]] Matrix up_of(std::uint64_t expert) const {
    const BlobOffsets& o = args_.weights.offsets;
    return matrix(expert, o.up, o.up_scale, o.up_mul, o.up_bias, args_.shape.hidden);
  }
  [[nodiscard]] Matrix down_of(std::uint64_t expert) const {
    const BlobOffsets& o = args_.weights.offsets;
    return matrix(expert, o.down, o.down_scale, o.down_mul, o.down_bias, args_.shape.inter);
  }

  // The finished sums of a tile's bands. `next` is what is read then, where that is another place.
  void multiply(const Matrix& matrix, std::uint64_t tile, const Stream& next,
                const Record* const* x, std::uint64_t rows, Sums* sums) const {
    const std::uint64_t first = tile * kTileColumns;
    Products::multiply(matrix.bands(first, prefetch_, next), x, rows, sums);
    for (std::uint64_t band = 0; band < kBandsOfTile; ++band) {
      for (std::uint64_t r = 0; r < rows; ++r)
        matrix.finish(sums[band][r], first + band * kBandRows);
    }
  }

  // Tiles of the intermediate axis for all rows of an expert: first their bands of gate, then those
  // of up, so that each is one stream.
  void gate_up(const Block& at, const Block& next) {
    const Matrix gate = gate_of(at.expert);
    const Matrix up = up_of(at.expert);
    const bool gated = gate.codes != nullptr;
    const std::uint64_t first = at.first * kTileColumns;
    const Stream again = (gated ? gate : up).from(first);  // for the rows that are left
    Stream after = {};
    if (next.end > 0) {
      const Matrix matrix = gated ? gate_of(next.expert) : up_of(next.expert);
      after = matrix.from(next.first * kTileColumns);
    }
    const std::uint64_t end = work_.slots.with0[at.expert + 1];
    for (std::uint64_t row = work_.slots.with0[at.expert]; row < end; row += kMostRows) {
      const std::uint64_t rows = end - row < kMostRows ? end - row : kMostRows;
      const Record* x[kMostRows];
      for (std::uint64_t r = 0; r < rows; ++r)
        x[r] = work_.x + work_.slots.token_of_row(row + r) * records_of(x_tiles_);
      alignas(64) Sums gates[kMostTiles * kBandsOfTile];
      for (std::uint64_t tile = at.first; tile < at.end; ++tile) {
        Sums* sums = gates + (tile - at.first) * kBandsOfTile;
        if (!gated) {
          std::memset(sums, 0, kBandsOfTile * sizeof *sums);
          continue;
        }
        const Stream then = tile + 1 == at.end ? up.from(first) : Stream{};
        multiply(gate, tile, then, x, rows, sums);
      }
      for (std::uint64_t tile = at.first; tile < at.end; ++tile) {
        alignas(64) float act[kMostRows][kTileColumns];
        alignas(64) Sums ups[kBandsOfTile];
        const Stream behind = row + rows < end ? again : after;
        multiply(up, tile, tile + 1 == at.end ? behind : Stream{}, x, rows, ups);
        const Sums* of_tile = gates + (tile - at.first) * kBandsOfTile;
        for (std::uint64_t band = 0; band < kBandsOfTile; ++band) {
          for (std::uint64_t r = 0; r < rows; ++r)
            activate_band(of_tile[band][r], ups[band][r], act[r] + band * kBandRows);
        }
        for (std::uint64_t r = 0; r < rows; ++r) keep_act(act[r], row + r, tile);
      }
    }
  }

  // A tile of a row's values between the products, as a record and where a tap shows it.
  void keep_act(const float* values, std::uint64_t row, std::uint64_t tile) {
    Record& to = work_.act[row * records_of(act_tiles_) + tile];
    Quantise::record(values, to);
    if (args_.act_tap == nullptr) return;
    const std::uint64_t slot = work_.slots.slot_of_row[row];
    Quantise::values(to, args_.act_tap + slot * args_.shape.inter + tile * kTileColumns);
  }

  void activate_band(const float* gates, const float* ups, float* act) const {
    using Lanes = ActivateLanes<Simd>;
    const Activation activation = args_.shape.activation;
    const float limit = args_.shape.activation_limit;
    if (Lanes::has(activation)) {
      for (std::uint64_t lane = 0; lane < kBandRows; lane += Lanes::kLanes)
        Lanes::run(activation, limit, gates + lane, ups + lane, act + lane);
    } else {
      for (std::uint64_t lane = 0; lane < kBandRows; ++lane)
        act[lane] = activate(activation, limit, gates[lane], ups[lane]);
    }
  }

  // Tiles of hidden for all rows of an expert.
  void down(const Block& at, const Block& next) {
    const Matrix weights = down_of(at.expert);
    const Stream after =
        next.end > 0 ? down_of(next.expert).from(next.first * kTileColumns) : Stream{};
    const std::uint64_t end = work_.slots.with0[at.expert + 1];
    for (std::uint64_t row = work_.slots.with0[at.expert]; row < end; row += kMostRows) {
      const std::uint64_t rows = end - row < kMostRows ? end - row : kMostRows;
      const Record* act[kMostRows];
      for (std::uint64_t r = 0; r < rows; ++r)
        act[r] = work_.act + (row + r) * records_of(act_tiles_);
      for (std::uint64_t tile = at.first; tile < at.end; ++tile) {
        alignas(64) Sums sums[kBandsOfTile];
        const Stream behind = row + rows < end ? weights.from(at.first * kTileColumns) : after;
        multiply(weights, tile, tile + 1 == at.end ? behind : Stream{}, act, rows, sums);
        for (std::uint64_t band = 0; band < kBandsOfTile; ++band) {
          const std::uint64_t column = tile * kTileColumns + band * kBandRows;
          for (std::uint64_t r = 0; r < rows; ++r)
            std::memcpy(work_.down + (row + r) * args_.shape.hidden + column, sums[band][r],
                        sizeof sums[band][r]);
        }
      }
    }
  }

  // A chunk of one token. Masked slots are skipped: what their rows hold, NaN included, must not
  // reach y.
  void combine(std::uint64_t token, std::uint64_t tile) {
    const std::uint64_t hidden = args_.shape.hidden;
    const std::uint64_t first = tile * kTileColumns;
    const std::uint64_t count = (chunk_end(tile) - tile) * kTileColumns;
    alignas(64) float y[kChunkTiles * kTileColumns];
    std::memset(y, 0, count * sizeof(float));
    for (std::uint64_t choice = 0; choice < args_.shape.top_k; ++choice) {
      const std::uint64_t slot = token * args_.shape.top_k + choice;
      const std::int32_t row = work_.slots.row_of_slot[slot];
      if (row < 0) continue;
      const float weight = args_.topk_weights[slot];
      const float* output = work_.down + static_cast<std::uint64_t>(row) * hidden + first;
      for (std::uint64_t i = 0; i < count; ++i) y[i] += weight * output[i];
    }
    const MutableMatrixRef& to = args_.final_y;
    const std::uint64_t at = token * to.row_stride + first;
    if (to.data == nullptr) {
      std::memcpy(args_.y + token * hidden + first, y, count * sizeof(float));
    } else if (to.dtype == DType::f32) {
      std::memcpy(static_cast<float*>(to.data) + at, y, count * sizeof(float));
    } else {
      auto* bf16 = static_cast<std::uint16_t*>(to.data) + at;
      for (std::uint64_t i = 0; i < count; ++i) bf16[i] = encode_bf16(y[i]);
    }
  }

  const ExpertsArgs& args_;
  Workspace<Products> work_;
  std::uint64_t x_tiles_;
  std::uint64_t act_tiles_;
  std::uint64_t chunks_;  // of a token
  Prefetch prefetch_;
  std::uint64_t mark_;
};

}  // namespace moxie::cpu::tiles
