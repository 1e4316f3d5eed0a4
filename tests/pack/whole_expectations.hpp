// SPDX-License-Identifier: Apache-2.0
// What a packed folder of a whole checkpoint must hold, by the second packers' word.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "moxie/pack.hpp"
#include "pack/reference_packer.hpp"
#include "pack/reference_whole.hpp"
#include "support/packed_model.hpp"
#include "support/whole_checkpoint.hpp"

namespace moxie::test {

inline std::string rank_folder(unsigned rank) { return "rank-00" + std::to_string(rank); }

inline bool is_routed(const std::string& name) {
  return name.find(".ffn.experts.") != std::string::npos;
}

// Every tensor around the experts on every rank, in its own file, and no other.
inline void expect_as_reference(const WholeCheckpoint& model, const ShardPlan& plan,
                                const std::filesystem::path& set,
                                FileLayout layout = FileLayout::logical) {
  const V4Config& config = model.config();
  const WholeReference reference(model->checkpoint, config, plan.tp);
  for (const RankPlan& rank : plan.ranks) {
    const Checkpoint packed = open_checkpoint(set / rank_folder(rank.rank));
    std::set<std::string> due;
    const auto expect = [&](const std::vector<ModelTensor>& list, const std::string& file) {
      for (const ModelTensor& tensor : list) {
        SCOPED_TRACE(tensor.name + " rank " + std::to_string(rank.rank));
        const TensorInfo* found = packed.find(tensor.name);
        ASSERT_NE(found, nullptr);
        EXPECT_EQ(found->dtype, tensor.dtype);
        EXPECT_EQ(packed.files()[found->file].path.filename(), file);
        ASSERT_TRUE(same_bytes(reference.pack(tensor.name, rank.tp_rank), packed.bytes(*found)));
        due.insert(tensor.name);
      }
    };
    for (std::uint64_t layer = 0; layer < config.layers + config.drafts; ++layer) {
      ASSERT_NO_FATAL_FAILURE(expect(layer_tensors(config, layer),
                                     "model-0000" + std::to_string(layer) + ".safetensors"));
    }
    ASSERT_NO_FATAL_FAILURE(expect(top_tensors(config), "model-top.safetensors"));
    for (const TensorInfo& tensor : packed.tensors()) {
      const bool experts = layout == FileLayout::logical ? is_routed(tensor.name)
                                                         : tensor.name.ends_with(".experts");
      EXPECT_TRUE(experts || due.contains(tensor.name)) << tensor.name;
    }
  }
}

// The experts of one layer in either layout: slots of every rank in the order of `ids`, by
// expert-parallel group.
inline void expect_experts_as_reference(const WholeCheckpoint& model, const ShardPlan& plan,
                                        const std::filesystem::path& set, FileLayout layout,
                                        std::uint64_t layer, std::uint64_t align,
                                        const std::vector<std::vector<std::uint64_t>>& ids) {
  const V4Config& config = model.config();
  const bool draft = layer >= config.layers;
  const std::string prefix =
      draft ? "mtp." + std::to_string(layer - config.layers) : "layers." + std::to_string(layer);
  const BlockFormat format = draft ? BlockFormat::mxfp4 : plan.format;
  ReferencePacker reference(model->checkpoint, format, config.hidden, config.inter, prefix);
  std::vector<const char*> names = {"w1.weight", "w3.weight", "w2.weight",
                                    "w1.scale",  "w3.scale",  "w2.scale"};
  if (format == BlockFormat::nvfp4) {
    names = {"w1.weight",         "w3.weight",       "w2.weight",         "w1.weight_scale",
             "w3.weight_scale",   "w2.weight_scale", "w1.weight_scale_2", "w3.weight_scale_2",
             "w2.weight_scale_2", "w1.input_scale",  "w3.input_scale",    "w2.input_scale"};
  }
  for (unsigned rank = 0; rank < plan.tp * plan.ep; ++rank) {
    const Checkpoint packed = open_checkpoint(set / rank_folder(rank));
    const auto& held = ids.at(rank / plan.tp);
    for (std::uint64_t slot = 0; slot < held.size(); ++slot) {
      SCOPED_TRACE(prefix + " expert " + std::to_string(held[slot]) + " rank " +
                   std::to_string(rank));
      const auto due = reference.pack(held[slot], plan.tp, rank % plan.tp, align);
      std::vector<std::byte> got;
      if (layout == FileLayout::kernel) {
        const TensorInfo* blobs = packed.find("layers." + std::to_string(layer) + ".experts");
        ASSERT_NE(blobs, nullptr);
        ASSERT_EQ(blobs->shape, (Shape{held.size(), due.size()}));
        const auto blob = packed.bytes(*blobs).subspan(slot * due.size(), due.size());
        got.assign(blob.begin(), blob.end());
      } else {
        for (const char* name : names) {
          const TensorInfo* tensor =
              packed.find(prefix + ".ffn.experts." + std::to_string(held[slot]) + "." + name);
          ASSERT_NE(tensor, nullptr) << name;
          const auto bytes = packed.bytes(*tensor);
          got.insert(got.end(), bytes.begin(), bytes.end());
        }
        got.resize(due.size());
      }
      ASSERT_TRUE(same_bytes(due, got));
    }
    std::size_t experts = 0;
    for (const TensorInfo& tensor : packed.tensors()) {
      experts += tensor.name.starts_with(prefix + ".ffn.experts.") ? 1 : 0;
    }
    EXPECT_EQ(experts, layout == FileLayout::logical ? held.size() * names.size() : 0);
  }
}

}  // namespace moxie::test
