// SPDX-License-Identifier: Apache-2.0
// Replays every lying file: refused with the right finding, without a crash and without large
// allocations.
#include "attacks/attacks.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_header.hpp"
#include "moxie/checkpoint.hpp"
#include "support/allocation_meter.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie {
namespace {

// The largest attack is a header of 600 kB; what refusing it allocates must not depend on what it
// claims.
constexpr std::size_t kMostAllocated = std::size_t{4} << 20;

std::vector<test::Attack> file_attacks() {
  std::vector<test::Attack> all;
  for (const auto& some : {test::length_attacks(), test::syntax_attacks(), test::entry_attacks(),
                           test::span_attacks()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

template <class Action>
void expect_refused(const test::Attack& attack, const std::string& file, const Action& action) {
  SCOPED_TRACE(attack.name);
  test::AllocationMeter::reset();
  const Error error = test::refusal_of(action);
  EXPECT_LT(test::AllocationMeter::total, kMostAllocated);
  EXPECT_EQ(error.code(), ErrorCode::input) << error.what();
  EXPECT_EQ(test::code_of(error), attack.code) << error.what();
  EXPECT_EQ(error.findings().front().where.file, file) << error.what();
}

TEST(Attacks, HaveDistinctNames) {
  std::set<std::string> names;
  for (const test::Attack& attack : file_attacks())
    EXPECT_TRUE(names.insert(attack.name).second) << attack.name;
  for (const test::Attack& attack : test::index_attacks())
    EXPECT_TRUE(names.insert(attack.name).second) << attack.name;
  EXPECT_GE(names.size(), 40U);
}

TEST(Attacks, ByABufferAreRefused) {
  for (const test::Attack& attack : file_attacks()) {
    expect_refused(attack, "memory", [&] {
      read_safetensors_header(std::as_bytes(std::span(attack.bytes)), "memory");
    });
  }
}

TEST(Attacks, ByAFileAreRefused) {
  const test::TempFolder folder;
  for (const test::Attack& attack : file_attacks()) {
    const auto path = folder.write(attack.name + ".safetensors", attack.bytes);
    expect_refused(attack, path.string(), [&] { open_checkpoint(path); });
  }
}

TEST(Attacks, ByAShardAreRefusedWithAndWithoutAnIndex) {
  for (const test::Attack& attack : file_attacks()) {
    const test::TempFolder folder;
    folder.write(
        "good.safetensors",
        test::safetensors_bytes(test::header_of({test::entry("g", "U8", "1", 0, 1)}), "x"));
    const auto path = folder.write("model-1-of-2.safetensors", attack.bytes);
    expect_refused(attack, path.string(), [&] { open_checkpoint(folder.path()); });
    folder.write("model.safetensors.index.json",
                 R"({"weight_map":{"g":"good.safetensors","t":"model-1-of-2.safetensors"}})");
    expect_refused(attack, path.string(), [&] { open_checkpoint(folder.path()); });
  }
}

TEST(Attacks, ByAnIndexAreRefused) {
  for (const test::Attack& attack : test::index_attacks()) {
    const test::TempFolder folder;
    folder.write("s.safetensors", test::safetensors_bytes(
                                      test::header_of({test::entry("t", "U8", "1", 0, 1)}), "x"));
    const auto index = folder.write("model.safetensors.index.json", attack.bytes);
    const bool names_the_shard = attack.code == "MOXIE-C011";
    const auto file = names_the_shard ? folder.path() / "s.safetensors" : index;
    expect_refused(attack, file.string(), [&] { open_checkpoint(folder.path()); });
  }
}

}  // namespace
}  // namespace moxie
