// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes read as a GGUF file are refused with Error(input) or obey all laws.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string>

#include "../tests/support/gguf_laws.hpp"
#include "checkpoint/gguf_header.hpp"
#include "moxie/json.hpp"
#include "moxie/status.hpp"

namespace {

void require(bool holds, const std::string& sentence) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", sentence.c_str());
  std::abort();  // how libFuzzer learns of it
}

void judge(std::span<const std::byte> file) {
  try {
    const moxie::GgufHeader header = moxie::read_gguf_header(file, "fuzz");
    require(moxie::test::broken_law(header, file).empty(), moxie::test::broken_law(header, file));
    // What becomes the config of a packed set reads back.
    const std::string text = header.metadata.dump();
    require(moxie::Json::parse(text, "dump").dump() == text, "the metadata reads back otherwise");
  } catch (const moxie::Error& error) {
    require(error.code() == moxie::ErrorCode::input, error.what());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  judge(std::as_bytes(std::span(data, size)));
  // The same bytes behind a right start with one key and one tensor, so that mutations reach them.
  std::string framed("GGUF\3\0\0\0\1\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0", 24);
  framed.append(reinterpret_cast<const char*>(data), size);
  framed.append(4096, 'x');
  judge(std::as_bytes(std::span(framed)));
  return 0;
}
