// SPDX-License-Identifier: Apache-2.0
// Counts to choices: each row's expert by walking over the experts. FP8 rows to their values.
#include "kernels/cpu/portable/rows.hpp"

#include <algorithm>
#include <array>
#include <atomic>

#include "base/parallel.hpp"
#include "formats/bf16.hpp"
#include "formats/e4m3.hpp"

namespace moxie::cpu::portable {

namespace {

constexpr std::array<float, 256> e4m3_values() {
  std::array<float, 256> values{};
  for (unsigned code = 0; code < 256; ++code)
    values[code] = decode_e4m3(static_cast<std::uint8_t>(code));
  return values;
}

float rounded(float value, float /*type*/) { return value; }
std::uint16_t rounded(float value, std::uint16_t /*type*/) { return encode_bf16(value); }

template <class Element>
void expand_row(const ExpertRowsArgs& args, std::uint64_t row) {
  static constexpr std::array<float, 256> kValues = e4m3_values();
  const std::uint64_t hidden = args.codes.cols;
  const auto* codes =
      static_cast<const std::uint8_t*>(args.codes.data) + row * args.codes.row_stride;
  const float* scale = args.code_scales.data + first_code_scale(args, row);
  Element* x = static_cast<Element*>(args.x.data) + row * hidden;
  for (std::uint64_t first = 0; first < hidden; first += kScaledColumns) {
    const std::uint64_t end = std::min(first + kScaledColumns, hidden);
    for (std::uint64_t column = first; column < end; ++column)
      x[column] = rounded(kValues[codes[column]] * *scale, Element{});
    if (end < hidden) scale += args.code_scales.block_stride;
  }
}

// Rows that are nobody's are not read.
template <class Element>
void expand(const ExpertRowsArgs& args) {
  constexpr std::uint64_t kParallelWork = 100'000;  // values; below it threads cost more than help
  const unsigned threads = args.rows * args.codes.cols < kParallelWork ? 1 : args.threads;
  parallel_team(threads, [&](Team& team) {
    team.for_ranges(args.rows, threads, [&](std::uint64_t first, std::uint64_t end) {
      for (std::uint64_t row = first; row < end; ++row)
        if (args.ids[row] >= 0) expand_row<Element>(args, row);
    });
  });
}

void run(const ExpertRowsArgs& args) {
  std::fill_n(args.ids, args.rows, -1);
  for (std::uint64_t row = 0; row < args.rows; ++row)
    args.weights[row] = args.row_scales == nullptr ? 1.0F : args.row_scales[row];
  std::uint64_t next = 0;
  bool bad = false;
  for (std::uint64_t expert = 0; expert < args.local_experts; ++expert) {
    if (args.rows_apart > 0) next = expert * args.rows_apart;
    const std::uint64_t left = args.rows - std::min(next, args.rows);
    const std::uint64_t room = args.rows_apart > 0 ? std::min(left, args.rows_apart) : left;
    const std::int32_t count = args.rows_of_expert[expert];
    const std::uint64_t wanted = count < 0 ? 0 : static_cast<std::uint64_t>(count);
    if (count < 0 || wanted > room) bad = true;
    const std::uint64_t given = std::min(wanted, room);
    std::fill_n(args.ids + next, given, static_cast<std::int32_t>(expert));
    next += given;
  }
  if (bad) std::atomic_ref(*args.flags).fetch_or(kFlagBadRowCount, std::memory_order_relaxed);
  if (args.codes.data == nullptr) return;
  if (args.x.dtype == DType::bf16) {
    expand<std::uint16_t>(args);
  } else {
    expand<float>(args);
  }
}

}  // namespace

const RowsKernel kRows{.run = run};

}  // namespace moxie::cpu::portable
