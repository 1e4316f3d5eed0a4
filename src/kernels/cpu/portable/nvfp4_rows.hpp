// SPDX-License-Identifier: Apache-2.0
// The nvfp4 stages of cpu.portable.experts: global scales by policy, rows to code * block scale.
#pragma once

#include <cstdint>

#include "base/parallel.hpp"
#include "kernels/contract.hpp"
#include "kernels/cpu/portable/workspace.hpp"

namespace moxie::cpu::portable {

// x of one token as fp32.
void load_x(const ExpertsArgs& args, std::uint64_t token, float* out);  // [hidden]

// Both functions are called by every member of the team, and add to the call's counts.
class Nvfp4Rows {
 public:
  Nvfp4Rows(const ExpertsArgs& args, const Workspace& work) : args_(args), work_(work) {}

  // x of the tokens that have a slot on this rank, or of every slot; other rows are left alone.
  void quantise_x(Team& team) const;
  // The rows of all slots, which then hold what enters the down product but for its global scale.
  void quantise_act(Team& team) const;

 private:
  struct Rows {
    float* values = nullptr;  // [count, width]
    float* scales = nullptr;  // [count]; global scales
    std::uint64_t count = 0;
    std::uint64_t width = 0;
    bool is_x = false;
    ActStage* stats = nullptr;
  };

  void quantise(Team& team, const Rows& rows) const;
  void quantise(const Rows& rows, std::uint64_t row, float scale) const;
  void note_range(const Rows& rows) const;

  // The token whose x is in this row of the x buffer.
  [[nodiscard]] std::uint64_t token_of(std::uint64_t x_row) const;
  // False for the x of a token without a slot on this rank: it counts for nothing.
  [[nodiscard]] bool is_used(const Rows& rows, std::uint64_t row) const;
  void load(const Rows& rows, std::uint64_t row) const;
  [[nodiscard]] float largest_amax(std::uint64_t rows) const;
  [[nodiscard]] float stored_scale(const Rows& rows, std::uint64_t row) const;

  const ExpertsArgs& args_;
  const Workspace& work_;
};

}  // namespace moxie::cpu::portable
