// SPDX-License-Identifier: Apache-2.0
// Counts to choices: each row's expert by walking over the experts.
#include "kernels/cpu/portable/rows.hpp"

#include <algorithm>
#include <numeric>

namespace moxie::cpu::portable {

namespace {

void run(const ExpertRowsArgs& args) {
  std::iota(args.local_of_expert, args.local_of_expert + args.local_experts, 0);
  std::fill_n(args.ids, args.rows, -1);
  for (std::uint64_t row = 0; row < args.rows; ++row)
    args.weights[row] = args.row_scales == nullptr ? 1.0F : args.row_scales[row];
  std::uint64_t next = 0;
  for (std::uint64_t expert = 0; expert < args.local_experts; ++expert) {
    if (args.rows_apart > 0) next = expert * args.rows_apart;
    const std::uint64_t left = args.rows - std::min(next, args.rows);
    const std::uint64_t room = args.rows_apart > 0 ? std::min(left, args.rows_apart) : left;
    const std::int32_t count = args.rows_of_expert[expert];
    const std::uint64_t wanted = count < 0 ? 0 : static_cast<std::uint64_t>(count);
    if (count < 0 || wanted > room) *args.flags |= kFlagBadRowCount;
    const std::uint64_t given = std::min(wanted, room);
    std::fill_n(args.ids + next, given, static_cast<std::int32_t>(expert));
    next += given;
  }
}

}  // namespace

const RowsKernel kRows{.run = run};

}  // namespace moxie::cpu::portable
