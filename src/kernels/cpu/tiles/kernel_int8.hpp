// SPDX-License-Identifier: Apache-2.0
// The kernel of int8 and int8x2 activations over an instruction set's vocabulary. Included inside a
// target region.
#pragma once

#include "kernels/cpu/tiles/experts.hpp"
#include "kernels/cpu/tiles/products_int8.hpp"
#include "kernels/cpu/tiles/quantise.hpp"

namespace moxie::cpu::tiles {

template <class Simd>
struct KernelInt8 {
  static void run(const ExpertsArgs& args) {
    if (args.shape.format == BlockFormat::mxfp4) return run_format<BlockFormat::mxfp4>(args);
    run_format<BlockFormat::nvfp4>(args);
  }

  static std::uint64_t workspace_bytes(const ExpertsShape& shape, std::uint64_t tokens) {
    const bool one = shape.act_format == ActFormat::int8;
    return workspace_layout(shape, tokens, one ? sizeof(Int8Record) : sizeof(Int8x2Record)).bytes;
  }

 private:
  template <BlockFormat kFormat>
  static void run_format(const ExpertsArgs& args) {
    if (args.shape.act_format == ActFormat::int8)
      return ExpertsCall<Simd, ProductsInt8<Simd, kFormat, OnePlane>, ToInt8<Simd>>(args).run();
    ExpertsCall<Simd, ProductsInt8<Simd, kFormat, TwoPlanes>, ToInt8x2<Simd>>(args).run();
  }
};

}  // namespace moxie::cpu::tiles
