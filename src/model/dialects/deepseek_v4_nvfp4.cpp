// SPDX-License-Identifier: Apache-2.0
// NVFP4 re-quantisation of DeepSeek-V4: native names, ModelOpt parts. The config still says fp8 and
// fp4; the tensors decide, per layer, because multi-token-prediction blocks of the same checkpoint
// stay native.
#include "model/dialects/dialect.hpp"

namespace moxie {

namespace {

constexpr DialectNames kNamings[] = {{.projections = {"w1", "w3", "w2"},
                                      .codes = ".weight",
                                      .block_scales = ".weight_scale",
                                      .dequant_mul = ".weight_scale_2",
                                      .act_dequant_mul = ".input_scale"}};

}  // namespace

const Dialect kDeepseekV4Nvfp4 = {
    .name = "deepseek-v4-nvfp4",
    .format = BlockFormat::nvfp4,
    .namings = kNamings,
    .default_prefix = "layers.{}.ffn.experts",
    .lives_under = [](std::string_view prefix) { return prefix.ends_with("ffn.experts"); }};

}  // namespace moxie
