// SPDX-License-Identifier: Apache-2.0
// xxh3_128 checksums as 32 lower-case hex digits.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace moxie {

// Checksum of data that arrives in pieces.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;

  void update(std::span<const std::byte> bytes);
  // Of everything so far; more may follow.
  [[nodiscard]] std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hash_hex(std::span<const std::byte> bytes);
std::string hash_hex(std::string_view text);

}  // namespace moxie
