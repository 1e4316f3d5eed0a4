// SPDX-License-Identifier: Apache-2.0
// quantise_raw FORMAT RECIPE ROWS COLS INPUT OUTPUT: quantises fp32 rows for
// tests/quantize/quality.py. OUTPUT is the global (fp32), the scales, the codes with even columns
// low, and the codes with each group's halves low and high (GGUF).
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/block_format.hpp"
#include "formats/nibble_order.hpp"
#include "moxie/quantize.hpp"

namespace {

template <class Recipe>
bool find(const std::string& name, Recipe last, Recipe& found) {
  for (int i = 0; i <= static_cast<int>(last); ++i) {
    found = static_cast<Recipe>(i);
    if (moxie::name_of(found) == name) return true;
  }
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.size() != 6) return 2;
  std::ifstream input(args[4], std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(input)), {});
  const std::uint64_t rows = std::stoull(args[2]);
  const std::uint64_t cols = std::stoull(args[3]);
  if (bytes.size() != rows * cols * sizeof(float)) return 2;
  const moxie::MatrixRef matrix = {.data = bytes.data(),
                                   .dtype = moxie::DType::f32,
                                   .rows = rows,
                                   .cols = cols,
                                   .row_stride = cols};
  moxie::Quantised result;
  moxie::Nvfp4Recipe nvfp4 = {};
  moxie::Mxfp4Recipe mxfp4 = {};
  if (args[0] == "nvfp4" && find(args[1], moxie::Nvfp4Recipe::fp8_closed, nvfp4)) {
    result = moxie::quantise_nvfp4(matrix, {.recipe = nvfp4});
  } else if (args[0] == "mxfp4" && find(args[1], moxie::Mxfp4Recipe::mse, mxfp4)) {
    result = moxie::quantise_mxfp4(matrix, mxfp4);
  } else {
    return 2;
  }

  const std::uint64_t group = moxie::scale_group(result.matrix.format);
  std::vector<std::uint8_t> halves(result.matrix.codes.size());
  for (std::uint64_t at = 0; at < halves.size(); at += group / 2) {
    moxie::reorder_block(result.matrix.codes.data() + at, moxie::NibbleOrder::even_low,
                         halves.data() + at, moxie::NibbleOrder::split_half, group);
  }
  std::ofstream output(args[5], std::ios::binary);
  const auto write = [&](const void* data, std::size_t count) {
    output.write(static_cast<const char*>(data), static_cast<std::streamsize>(count));
  };
  write(&result.matrix.dequant_mul, sizeof(float));
  for (const auto* part : {&result.matrix.scales, &result.matrix.codes, &halves})
    write(part->data(), part->size());
  std::cout.precision(17);
  std::cout << result.stats.signal << " " << result.stats.noise << "\n";
  return output.good() ? 0 : 1;
}
