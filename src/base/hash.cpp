// SPDX-License-Identifier: Apache-2.0
// The only file that sees xxHash.
#include "base/hash.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace moxie {

namespace {

std::string to_hex(XXH128_hash_t hash) {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : canonical.digest) {
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

}  // namespace

struct StreamHash::State {
  XXH3_state_t xxh;
};

StreamHash::StreamHash() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
StreamHash::~StreamHash() = default;

void StreamHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh, bytes.data(), bytes.size());
}

std::string StreamHash::hex() const { return to_hex(XXH3_128bits_digest(&state_->xxh)); }

std::string hash_hex(std::span<const std::byte> bytes) {
  return to_hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string hash_hex(std::string_view text) { return hash_hex(std::as_bytes(std::span(text))); }

}  // namespace moxie
