// SPDX-License-Identifier: Apache-2.0
// What the tests of the dialects ask of a layer in canonical form.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "moxie/model.hpp"
#include "support/tiny_checkpoint.hpp"

namespace moxie::test {

// Whether some finding has this code.
inline bool has_code(const std::vector<Finding>& findings, std::string_view code) {
  return std::ranges::any_of(findings, [&](const Finding& f) { return f.code == code; });
}

// All findings on one line each.
inline std::string text_of(const std::vector<Finding>& findings) {
  std::string text;
  for (const Finding& finding : findings) text += to_string(finding) + "\n";
  return text;
}

// The projection's tensors are the named ones, whole, with these logical extents.
inline void expect_projection(const Projection& projection, const std::string& stem,
                              const std::string& code_leaf, const std::string& scale_leaf,
                              std::uint64_t rows, std::uint64_t columns, BlockFormat format) {
  const auto expect_rows = [&](const RowsView& view, const std::string& leaf,
                               std::uint64_t row_bytes) {
    ASSERT_TRUE(view.present()) << stem << leaf;
    EXPECT_EQ(view.tensor->name, stem + leaf);
    EXPECT_EQ(view.offset, 0U);
    EXPECT_EQ(view.rows, rows) << stem << leaf;
    EXPECT_EQ(view.row_bytes, row_bytes) << stem << leaf;
    EXPECT_EQ(view.row_stride, row_bytes) << stem << leaf;
    EXPECT_EQ(view.tensor->bytes, rows * row_bytes) << stem << leaf;
  };
  expect_rows(projection.codes, code_leaf, columns / 2);
  expect_rows(projection.block_scales, scale_leaf,
              columns / (format == BlockFormat::mxfp4 ? 32 : 16));
}

// The layer is complete and every projection of every expert has the right tensors. `leaves` are
// the names of gate, up and down.
inline void expect_layer(const LayerExperts& layer, const TinyOptions& options,
                         const std::array<std::string, 3>& leaves) {
  EXPECT_EQ(text_of(layer.problems), "");
  ASSERT_EQ(layer.experts.size(), options.experts);
  const bool inverse = is_compressed(options.dialect);
  const bool native = layer.dialect == "deepseek-v4";
  const std::string code_leaf = inverse ? ".weight_packed" : ".weight";
  const std::string scale_leaf = native ? ".scale" : ".weight_scale";
  for (std::uint64_t expert = 0; expert < options.experts; ++expert) {
    for (const ProjectionKind kind :
         {ProjectionKind::gate, ProjectionKind::up, ProjectionKind::down}) {
      const Projection& projection = layer.experts[expert][kind];
      if (kind == ProjectionKind::gate && !options.gated) {
        EXPECT_FALSE(projection.codes.present());
        EXPECT_FALSE(projection.block_scales.present());
        continue;
      }
      const std::string stem =
          layer.prefix + "." + std::to_string(expert) + "." + leaves[static_cast<unsigned>(kind)];
      const bool down = kind == ProjectionKind::down;
      expect_projection(projection, stem, code_leaf, scale_leaf,
                        down ? options.hidden : options.inter,
                        down ? options.inter : options.hidden, layer.format);
      if (layer.format == BlockFormat::mxfp4) {
        EXPECT_FALSE(projection.dequant_mul.present());
        EXPECT_FALSE(projection.act_dequant_mul.present());
        continue;
      }
      ASSERT_TRUE(projection.dequant_mul.present()) << stem;
      EXPECT_EQ(projection.dequant_mul.tensor->name,
                stem + (inverse ? ".weight_global_scale" : ".weight_scale_2"));
      EXPECT_EQ(projection.dequant_mul.reciprocal, inverse);
      ASSERT_EQ(projection.act_dequant_mul.present(), options.input_scales) << stem;
      if (!options.input_scales) continue;
      EXPECT_EQ(projection.act_dequant_mul.tensor->name,
                stem + (inverse ? ".input_global_scale" : ".input_scale"));
      EXPECT_EQ(projection.act_dequant_mul.reciprocal, inverse);
    }
  }
}

}  // namespace moxie::test
