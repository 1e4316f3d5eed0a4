// SPDX-License-Identifier: Apache-2.0
// Attention over one shared key-value head with a sink per query head, for one token: enough of it
// to give the output path values of every kind.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moxie::ref {

// e^(s_j - m) / (sum of them + e^(sink - m)), m the largest score: the sink enlarges the
// denominator and has no value. A sink of -infinity is none.
std::vector<double> sink_softmax(std::span<const double> scores, double sink);  // [keys]

struct SharedKeys {
  std::uint64_t head_dim = 0;
  std::span<const double> kv;  // [keys, head_dim], keys and values at once; at least one
  double score_mul = 1;        // head_dim^-0.5 in DeepSeek-V4
};

// Queries of zeros weigh all keys alike, so that their values are an average, not zero: this is
// what the virtual heads of a padded rank hold.
std::vector<double> attention_values(std::span<const double> q,      // [heads, head_dim]
                                     std::span<const double> sinks,  // [heads]
                                     const SharedKeys& keys);        // -> [heads, head_dim]

}  // namespace moxie::ref
