// SPDX-License-Identifier: Apache-2.0
// Checks of one probe under several plans, with references made once for all plans that share them.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <vector>

#include "cli/console.hpp"
#include "cli/run_subject.hpp"
#include "moxie/verify.hpp"

namespace moxie::cli {

// What holding one layer's result against its references gave.
struct CheckedRun {
  LayerCheck whole;        // from x to y
  LayerCheck stages;       // each stage from the engine's own values before it
  std::uint64_t acts = 0;  // values between the products that were looked at
  std::uint64_t acts_outside = 0;
  double reference_s = 0;    // of making the references
  std::uint64_t tokens = 0;  // that were checked
  std::vector<float> y;      // [tokens, hidden], the result that was checked
  const LayerReference* reference = nullptr;

  [[nodiscard]] bool passed() const { return whole.passed && stages.passed; }
};

class References {
 public:
  // Of more than `most_tokens` tokens that many are checked, evenly spaced from the first to the
  // last; all where an activation scale depends on all of them.
  References(const RunSubject& subject, const Probe& probe, const Console& console,
             std::uint64_t most_tokens = ~std::uint64_t{0});

  // Calls the layer once on all tokens, into a poisoned workspace, and checks what it returns.
  CheckedRun check(const MoeLayer& layer);

 private:
  // Plans whose activation groups begin at the same columns share a reference, unless ranks have
  // scales of their own.
  struct Key {
    std::vector<std::uint64_t> boundaries;
    unsigned tp = 0;  // both 0 where the ranks do not matter
    unsigned ep = 0;

    friend auto operator<=>(const Key&, const Key&) = default;
  };
  const LayerReference& of(const MoeLayer& layer);
  // Rows of [tokens, width] values that belong to the checked tokens.
  [[nodiscard]] std::vector<float> checked_rows(std::vector<float> values,
                                                std::uint64_t width) const;

  const RunSubject& subject_;
  const Probe& probe_;
  std::vector<std::uint64_t> tokens_;  // that are checked
  Probe checked_;                      // their rows; experts that nobody here holds are masked
  const Console& console_;
  std::map<Key, LayerReference> made_;
};

}  // namespace moxie::cli
