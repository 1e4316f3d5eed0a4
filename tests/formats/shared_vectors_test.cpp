// SPDX-License-Identifier: Apache-2.0
// MXFP4 blocks decoded by another project, read in place from shared/data/mxfp4-vectors, bit for
// bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "formats/block_format.hpp"

namespace moxie {
namespace {

namespace fs = std::filesystem;

// MOXIE_SHARED_DIR of the environment, else of the build.
fs::path vectors_dir() {
  const char* const from_environment = std::getenv("MOXIE_SHARED_DIR");
  const fs::path shared = from_environment != nullptr ? from_environment : MOXIE_SHARED_DIR;
  return shared / "data" / "mxfp4-vectors";
}

std::vector<std::uint8_t> bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Names without ".blocks.bin", sorted.
std::vector<std::string> vector_names(const fs::path& dir) {
  const std::string suffix = ".blocks.bin";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string file = entry.path().filename().string();
    if (file.size() > suffix.size() && file.substr(file.size() - suffix.size()) == suffix) {
      names.push_back(file.substr(0, file.size() - suffix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(SharedVectors, Mxfp4BlocksDecodeBitForBit) {
  const fs::path dir = vectors_dir();
  if (!fs::is_directory(dir)) {
    GTEST_SKIP() << dir << " is not there; set MOXIE_SHARED_DIR to the shared folder";
  }
  const std::vector<std::string> names = vector_names(dir);
  ASSERT_FALSE(names.empty()) << dir;

  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const auto blocks = bytes_of(dir / (name + ".blocks.bin"));  // [groups, 16]
    const auto scales = bytes_of(dir / (name + ".scales.bin"));  // [groups]
    const auto floats = bytes_of(dir / (name + ".f32.bin"));     // [groups, 32] fp32, little-endian
    ASSERT_FALSE(scales.empty());
    const Elems elems = to_elems(ScaleGroups{scales.size()}, BlockFormat::mxfp4);
    ASSERT_EQ(blocks.size(), to_packed_bytes(elems).value);
    ASSERT_EQ(floats.size(), elems.value * 4);

    for (std::uint64_t k = 0; k < elems.value; ++k) {
      std::uint32_t expected = 0;
      for (unsigned i = 0; i < 4; ++i) {
        expected |= static_cast<std::uint32_t>(floats[k * 4 + i]) << (8 * i);
      }
      const double value =
          dequantise_element(blocks.data(), scales.data(), k, BlockFormat::mxfp4, 1.0);
      ASSERT_EQ(bits_as<std::uint32_t>(static_cast<float>(value)), expected) << "element " << k;
    }
  }
}

}  // namespace
}  // namespace moxie
