// SPDX-License-Identifier: Apache-2.0
// The decode kernel of the CPU in steps: what each of them adds to the cycles of one tile of 16
// rows and 32 columns. Weights lie in the second-level cache, one thread.
//
//   load    the four lines of a tile
//   decode  and their codes to bf16 pairs (four shifts and permutes a line), or to octets (two)
//   dot     and 16 products of pairs, or 8 of octets, in one chain
//   chains  the same in two chains: the latency of a dot is six cycles, a tile has time for 35
//   rows    and the scales: what cpu.avx512.experts runs, for one row of activations or more
#include <cstdio>
#include <random>
#include <string_view>
#include <vector>

#include "base/cpu_features.hpp"
#include "kernels/cpu/tiles/included.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

#include <algorithm>

MOXIE_TARGET_BEGIN("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni,avx512bf16")
// clang-format off
#include "kernels/cpu/avx512/simd.hpp"
#include "kernels/cpu/tiles/band.hpp"
#include "kernels/cpu/tiles/products_bf16.hpp"
#include "kernels/cpu/tiles/products_int8.hpp"
// clang-format on

namespace moxie::cpu {
namespace {

using avx512::Simd;
using tiles::Band;
using tiles::Bf16Record;
using tiles::Int8Record;
using tiles::Int8x2Record;

constexpr std::uint64_t kColumns = 4096;
constexpr std::uint64_t kTiles = kColumns / kTileColumns;
constexpr std::uint64_t kBands = 8;
constexpr std::uint64_t kCodeBytes = kTiles * kTileBytes;
constexpr std::uint64_t kScaleBytes = kTiles * kBandRows;

enum class Step { load, decode, dot, chains };

std::vector<std::uint8_t> codes;
std::vector<std::uint8_t> scales;

// Keeps a register's value from being dropped.
void keep(__m512i x) { asm volatile("" ::"v"(x)); }

template <Step kStep>
void bf16_band(const Band& band, const Bf16Record* x) {
  __m512 sums[2] = {Simd::zeros(), Simd::zeros()};
  for (std::uint64_t tile = 0; tile < kTiles; ++tile) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto line = Simd::line(band.at.codes + tile * kTileBytes + 64 * i);
      if constexpr (kStep == Step::load) {
        keep(line);
      } else {
        const Simd::Pairs pairs[4] = {Simd::pairs<0>(line), Simd::pairs<1>(line),
                                      Simd::pairs<2>(line), Simd::pairs<3>(line)};
        for (std::uint64_t pair = 0; pair < 4; ++pair) {
          if constexpr (kStep == Step::decode) keep(pairs[pair]);
          if constexpr (kStep >= Step::dot) {
            auto& sum = sums[kStep == Step::dot ? 0 : i / 2];
            sum = Simd::dot(sum, pairs[pair], x[tile].values + 8 * i + 2 * pair);
          }
        }
      }
    }
  }
  keep(_mm512_castps_si512(Simd::add(sums[0], sums[1])));
}

template <Step kStep>
void int8_band(const Band& band, const Int8Record* x) {
  __m512i sums[2] = {Simd::start(0), Simd::start(0)};
  for (std::uint64_t tile = 0; tile < kTiles; ++tile) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      const auto line = Simd::line(band.at.codes + tile * kTileBytes + 64 * i);
      if constexpr (kStep == Step::load) {
        keep(line);
      } else {
        const Simd::Octets octets[2] = {Simd::low_octets(line), Simd::high_octets(line)};
        for (std::uint64_t half = 0; half < 2; ++half) {
          if constexpr (kStep == Step::decode) keep(octets[half]);
          if constexpr (kStep >= Step::dot) {
            auto& sum = sums[kStep == Step::dot ? 0 : i / 2];
            sum = Simd::dot(sum, octets[half], x[tile].codes + 8 * i + 4 * half);
          }
        }
      }
    }
  }
  keep(Simd::add(sums[0], sums[1]));
}

// Two bands at once, so every second call does nothing. Rows lie as in the kernels' workspace.
template <class Products, std::uint64_t kRows>
void kernel_bands(const Band& band, const typename Products::Record* x) {
  if ((band.at.codes - codes.data()) / kCodeBytes % 2 != 0) return;
  alignas(64) tiles::Sums sums[2];
  const typename Products::Record* rows[kRows];
  for (std::uint64_t r = 0; r < kRows; ++r) rows[r] = x + r * tiles::records_of(kTiles);
  const std::uint64_t scale_bytes = kTiles * Products::Scales::kBytes;
  const std::uint64_t index = (band.at.codes - codes.data()) / kCodeBytes;
  Products::multiply({.at = {band.at.codes, scales.data() + index * scale_bytes},
                      .columns = kColumns,
                      .prefetch = tiles::prefetch_of_processor(),
                      .code_bytes = kCodeBytes,
                      .scale_bytes = scale_bytes},
                     rows, kRows, sums);
  asm volatile("" ::"r"(sums) : "memory");
}

// Nanoseconds a tile, the best of many passes.
template <class Record>
double ns_of(void (*run)(const Band&, const Record*), const Record* x) {
  constexpr int kPasses = 400;
  std::uint64_t best = ~std::uint64_t{0};
  for (int pass = 0; pass < kPasses; ++pass) {
    const std::uint64_t begin = now_ns();
    for (std::uint64_t b = 0; b < kBands; ++b)
      run({.at = {codes.data() + b * kCodeBytes, scales.data() + b * kScaleBytes},
           .columns = kColumns},
          x);
    best = std::min(best, now_ns() - begin);
  }
  return static_cast<double>(best) / static_cast<double>(kBands * kTiles);
}

// Of a chain of dependent additions: one a cycle.
double cycles_per_ns() {
  constexpr std::uint64_t kAdds = 100'000;
  std::uint64_t best = ~std::uint64_t{0};
  std::uint64_t value = 0;
  for (int pass = 0; pass < 200; ++pass) {
    const std::uint64_t begin = now_ns();
    for (std::uint64_t i = 0; i < kAdds; ++i) asm volatile("add $1, %0" : "+r"(value));
    best = std::min(best, now_ns() - begin);
  }
  return static_cast<double>(kAdds) / static_cast<double>(best);
}

template <class Record>
void print(std::string_view name, void (*run)(const Band&, const Record*), const Record* x,
           double clock) {
  const double ns = ns_of(run, x);
  std::printf("%-14s %6.1f cycles a tile  %6.1f GB/s of codes and scales\n",
              std::string(name).c_str(), ns * clock,
              static_cast<double>(kTileBytes + kBandRows) / ns);
}

// The kernel for so many rows.
template <class Products>
void print_rows(std::string_view name, const std::vector<typename Products::Record>& x,
                double clock) {
  using Record = typename Products::Record;
  std::printf("%s\n", std::string(name).c_str());
  print<Record>("   1 row", kernel_bands<Products, 1>, x.data(), clock);
  print<Record>("   2 rows", kernel_bands<Products, 2>, x.data(), clock);
  print<Record>("   3 rows", kernel_bands<Products, 3>, x.data(), clock);
  print<Record>("   4 rows", kernel_bands<Products, 4>, x.data(), clock);
  print<Record>("   5 rows", kernel_bands<Products, 5>, x.data(), clock);
  print<Record>("   8 rows", kernel_bands<Products, 8>, x.data(), clock);
  print<Record>("  12 rows", kernel_bands<Products, 12>, x.data(), clock);
  print<Record>("  16 rows", kernel_bands<Products, 16>, x.data(), clock);
}

int run_steps() {
  std::mt19937 random(1);
  codes.resize(kBands * kCodeBytes);
  scales.assign(kBands * kScaleBytes, 120);
  for (std::uint8_t& byte : codes) byte = static_cast<std::uint8_t>(random());
  constexpr std::uint64_t kRecords = 16 * tiles::records_of(kTiles);
  std::vector<Bf16Record> bf16(kRecords);
  std::vector<Int8Record> int8(kRecords);
  std::vector<Int8x2Record> int8x2(kRecords);
  for (Bf16Record& record : bf16) std::fill_n(record.values, kTileColumns, 0x3F80);
  for (Int8Record& record : int8) record.mul = 1.0F;
  for (Int8x2Record& record : int8x2) record.mul = 1.0F;
  const double clock = cycles_per_ns();
  std::printf("%.2f GHz\n", clock);
  print<Bf16Record>("bf16 load", bf16_band<Step::load>, bf16.data(), clock);
  print<Bf16Record>("bf16 decode", bf16_band<Step::decode>, bf16.data(), clock);
  print<Bf16Record>("bf16 dot", bf16_band<Step::dot>, bf16.data(), clock);
  print<Bf16Record>("bf16 chains", bf16_band<Step::chains>, bf16.data(), clock);
  print<Int8Record>("int8 decode", int8_band<Step::decode>, int8.data(), clock);
  print<Int8Record>("int8 dot", int8_band<Step::dot>, int8.data(), clock);
  print<Int8Record>("int8 chains", int8_band<Step::chains>, int8.data(), clock);
  using tiles::OnePlane;
  using tiles::TwoPlanes;
  print_rows<tiles::ProductsBf16<Simd, BlockFormat::mxfp4>>("bf16, mxfp4", bf16, clock);
  print_rows<tiles::ProductsInt8<Simd, BlockFormat::mxfp4, OnePlane>>("int8, mxfp4", int8, clock);
  print_rows<tiles::ProductsInt8<Simd, BlockFormat::mxfp4, TwoPlanes>>("int8x2, mxfp4", int8x2,
                                                                       clock);
  scales.assign(2 * kBands * kScaleBytes, 0x38);
  print_rows<tiles::ProductsBf16<Simd, BlockFormat::nvfp4>>("bf16, nvfp4", bf16, clock);
  print_rows<tiles::ProductsInt8<Simd, BlockFormat::nvfp4, OnePlane>>("int8, nvfp4", int8, clock);
  return 0;
}

}  // namespace
}  // namespace moxie::cpu

int main() {
  const std::vector<std::string> features = moxie::cpu_features();
  if (std::ranges::find(features, "avx512_bf16") == features.end()) {
    std::puts("this machine has no AVX512-BF16");
    return 77;
  }
  return moxie::cpu::run_steps();
}
MOXIE_TARGET_END
#else
int main() {
  std::puts("for x86-64 alone");
  return 77;
}
#endif
