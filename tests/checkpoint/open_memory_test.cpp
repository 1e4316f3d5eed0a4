// SPDX-License-Identifier: Apache-2.0
// Opening reads headers only, and allocates by what a file holds, not by what it claims.
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "checkpoint/safetensors_header.hpp"
#include "moxie/checkpoint.hpp"
#include "support/allocation_meter.hpp"
#include "support/refusal.hpp"
#include "support/safetensors_bytes.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

// R-02 (c)
TEST(OpenMemory, R02cALengthFieldOfATerabyteAllocatesNothingLarge) {
  const std::string file = test::length_field(std::uint64_t{1} << 40) + "{       ";
  test::AllocationMeter::reset();
  test::refusal_of(
      [&] { read_safetensors_header(std::as_bytes(std::span(file)), "x.safetensors"); });
  EXPECT_GT(test::AllocationMeter::total, 0U) << "the meter does not run";
  EXPECT_LT(test::AllocationMeter::total, 16384U);
}

TEST(OpenMemory, AShapeOfATerabyteAllocatesNothingLarge) {
  const std::string file = test::safetensors_bytes(
      test::header_of({test::entry("t", "U8", "1099511627776", 0, std::uint64_t{1} << 40)}), "x");
  test::AllocationMeter::reset();
  test::refusal_of(
      [&] { read_safetensors_header(std::as_bytes(std::span(file)), "x.safetensors"); });
  EXPECT_LT(test::AllocationMeter::total, 16384U);
}

// KiB of the mapping of `path` that this process has touched, from the kernel's own account.
long resident_kib(const std::filesystem::path& path) {
  std::ifstream maps("/proc/self/smaps");
  bool ours = false;
  long total = -1;
  for (std::string line; std::getline(maps, line);) {
    const auto first_word = line.substr(0, line.find(' '));
    if (first_word.find('-') != std::string::npos) {
      ours = line.ends_with(path.string());
    } else if (ours && first_word == "Rss:") {
      long kib = 0;
      std::istringstream(line.substr(4)) >> kib;
      total = (total < 0 ? 0 : total) + kib;
    }
  }
  return total;
}

TEST(OpenMemory, OpeningTouchesNoTensorByte) {
  constexpr std::uint64_t kBytes = std::uint64_t{64} << 20;
  const test::TempFolder folder;
  const auto path = folder.write(
      "model.safetensors",
      test::safetensors_bytes(
          test::header_of({test::entry("t", "U8", std::to_string(kBytes), 0, kBytes)}), ""));
  const auto header_bytes = std::filesystem::file_size(path);
  std::filesystem::resize_file(path, header_bytes + kBytes);
  const Checkpoint checkpoint = open_checkpoint(folder.path());
  const long after_open = resident_kib(path);
  if (after_open < 0) GTEST_SKIP() << "no /proc/self/smaps";
  // One fault maps what the page cache holds around it, at most 64 KiB.
  EXPECT_LE(after_open, 64);
  const auto bytes = checkpoint.bytes(checkpoint.tensors().front());
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 4096) sum += std::to_integer<unsigned>(bytes[i]);
  EXPECT_EQ(sum, 0U);
  EXPECT_GT(resident_kib(path), 32 * 1024) << "the account does not see touched pages";
}

}  // namespace
}  // namespace moxie
