// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V4 native: w1 = gate, w3 = up, w2 = down; I8 carriers of packed E2M1, one E8M0 `scale`
// per 32, no global.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr DialectNames kNamings[] = {
    {.projections = {"w1", "w3", "w2"}, .codes = ".weight", .block_scales = ".scale"}};

}  // namespace

const Dialect kDeepseekV4 = {
    .name = "deepseek-v4",
    .format = BlockFormat::mxfp4,
    .namings = kNamings,
    .default_prefix = "layers.{}.ffn.experts",
    .lives_under = [](std::string_view prefix) { return prefix.ends_with("ffn.experts"); }};

}  // namespace moxie
