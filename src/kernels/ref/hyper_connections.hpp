// SPDX-License-Identifier: Apache-2.0
// Hyper-connections of DeepSeek-V4: c copies of the residual stream, mixed anew before and after
// each sublayer, for one token.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace moxie::ref {

// Tensors of one sublayer (`hc_attn_*`, `hc_ffn_*`), or of the head (`hc_head_*`, whose fn and base
// have c rows and whose scale has one value).
struct HyperConnection {
  std::span<const double> fn;     // [(2 + c) c, c * hidden]
  std::span<const double> scale;  // [3] of pre, post and C
  std::span<const double> base;   // [(2 + c) c]
};

struct HyperParameters {
  std::uint64_t copies = 4;  // c
  std::uint64_t sinkhorn_iterations = 20;
  double hc_eps = 1e-6;
  double rms_norm_eps = 1e-6;
};

struct Mix {
  std::vector<double> m;     // [(2 + c) c] before scale and base
  std::vector<double> pre;   // [c]
  std::vector<double> post;  // [c]
  std::vector<double> c;     // [c, c] from copy (first index) to copy
};

// `x` is [c, hidden] everywhere.
Mix mix(const HyperConnection& connection, const HyperParameters& parameters,
        std::span<const double> x);

// sum over j of pre_j x_j.                                                            // ->
// [hidden]
std::vector<double> collapse(std::span<const double> pre, std::span<const double> x);

// Copy k becomes post_k s + sum over j of C[j, k] x_j.                             // -> [c,
// hidden]
std::vector<double> expand(const Mix& mix, std::span<const double> x,
                           std::span<const double> s);  // [hidden] what the sublayer gave

// The collapse before the last norm, with weights of its own.                         // ->
// [hidden]
std::vector<double> collapse_head(const HyperConnection& head, const HyperParameters& parameters,
                                  std::span<const double> x);

}  // namespace moxie::ref
