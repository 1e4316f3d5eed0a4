// SPDX-License-Identifier: Apache-2.0
// Kernels of one arithmetic, and how a call runs on them.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/contract.hpp"
#include "kernels/cuda/sm90/call.hpp"
#include "kernels/cuda/sm90/kernels.hpp"

namespace moxie::cuda::sm90 {

using Kernel = void (*)(Call);

// One instantiation: stages in flight of items of 8 rows and of sheets, whose items have so many
// times 8 rows; 0 for none of these, as in small calls. Null for a format that the arithmetic does
// not take.
struct Variant {
  int narrow = 0;
  int wide = 0;
  std::uint32_t wide_tiles = 0;
  std::uint32_t least_rows = 0;  // of an expert, under an even routing
  Kernel mxfp4 = nullptr;
  Kernel nvfp4 = nullptr;
};

struct Family {
  std::span<const Variant> variants;  // the first that fits is the best
  std::span<const Variant> small;     // of small calls
  // Fills what lies before the ring, for items of so many rows; where that ends.
  std::uint32_t (*lay_out)(const ExpertsShape& shape, std::uint32_t rows, Memory& memory);
  // Bytes of shared memory that sheets take.
  std::uint32_t (*sheet_bytes)(BlockFormat format, const Variant& variant);
  RowForm form = RowForm::none;  // of the rows of sheets
};

void run(const Family& family, const ExpertsArgs& args);
std::uint64_t workspace_bytes(const Family& family, const ExpertsShape& shape,
                              std::uint64_t tokens);
bool supports(Activation activation);
// Returns the runtime's code.
int prepare(const Family& family);

template <const Family& kFamily>
const ExpertsKernel* kernel_of() {
  static const ExpertsKernel kernel{.run = [](const ExpertsArgs& args) { run(kFamily, args); },
                                    .workspace_bytes =
                                        [](const ExpertsShape& shape, std::uint64_t tokens) {
                                          return workspace_bytes(kFamily, shape, tokens);
                                        },
                                    .supports = supports,
                                    .prepare = [] { return prepare(kFamily); },
                                    .arrangement = arrangement(),
                                    .stores_y = true};
  return &kernel;
}

}  // namespace moxie::cuda::sm90
