// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes read as a safetensors file and as an index are refused with Error(input) or
// obey all laws.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include "../tests/support/header_laws.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/shard_index.hpp"
#include "moxie/json.hpp"
#include "moxie/status.hpp"

namespace {

void require(bool holds, const std::string& sentence) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", sentence.c_str());
  std::abort();  // how libFuzzer learns of it
}

// Runs `read`, which may refuse bad input and nothing else.
template <class Read>
void judge(const Read& read) {
  try {
    read();
  } catch (const moxie::Error& error) {
    require(error.code() == moxie::ErrorCode::input, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = std::as_bytes(std::span(data, size));
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  judge([&] {
    const moxie::SafetensorsHeader header = moxie::read_safetensors_header(file, "fuzz");
    require(moxie::test::broken_law(header, file).empty(), moxie::test::broken_law(header, file));
  });
  // The same bytes as a header whose length field is right, so that mutations reach the parser.
  judge([&] {
    std::string framed(8, '\0');
    for (unsigned i = 0; i < 8; ++i) framed[i] = static_cast<char>((size >> (8 * i)) & 0xFFU);
    framed += text;
    framed.append(16, 'x');
    const auto bytes = std::as_bytes(std::span(framed));
    const moxie::SafetensorsHeader header = moxie::read_safetensors_header(bytes, "fuzz");
    require(moxie::test::broken_law(header, bytes).empty(), moxie::test::broken_law(header, bytes));
  });
  judge([&] {
    const moxie::ShardIndex index = moxie::read_shard_index(text, "fuzz");
    require(moxie::test::broken_law(index).empty(), moxie::test::broken_law(index));
  });
  judge([&] {
    const moxie::Json value = moxie::Json::parse(text, "fuzz");
    require(moxie::Json::parse(value.dump(), "dump") == value,
            "dump() reads back as another value");
    require(moxie::Json::parse(value.dump_compact(), "dump") == value,
            "dump_compact() reads back as another value");
  });
  return 0;
}
