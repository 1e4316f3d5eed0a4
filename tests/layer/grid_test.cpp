// SPDX-License-Identifier: Apache-2.0
// The whole layer against the double reference, over ranks, routings, sizes and formats.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "support/layer_rig.hpp"
#include "support/packed_model.hpp"

namespace moxie {
namespace {

using test::RigModel;

// References by what they depend on, so that plans with the same format and group boundaries share
// them.
class References {
 public:
  References(const MoeModel& model, const LayerSpec& spec, const Probe& probe)
      : model_(model), spec_(spec), probe_(probe) {}
  const LayerReference& of(const ShardPlan& plan) {
    const Key key(plan.act_format, group_boundaries(plan));
    const auto found = made_.find(key);
    if (found != made_.end()) return found->second;
    return made_.emplace(key, make_reference(model_, 0, plan, spec_, probe_)).first->second;
  }
  std::size_t count() const { return made_.size(); }

 private:
  const MoeModel& model_;
  const LayerSpec& spec_;
  const Probe& probe_;
  using Key = std::pair<ActFormat, std::vector<std::uint64_t>>;
  std::map<Key, LayerReference> made_;
};

void expect_passes(const MoeModel& model, const ShardPlan& plan, const LayerSpec& spec,
                   const Probe& probe, References& references) {
  const MoeLayer layer = test::layer_of(model, plan, spec);
  const LayerCheck check = check_layer(layer, references.of(plan), probe);
  EXPECT_TRUE(check.passed) << test::describe(plan) << " " << name_of(plan.act_format) << " tokens "
                            << probe.tokens << " top_k " << probe.top_k << ": err/bound "
                            << check.max_err_over_bound << " at token " << check.worst_token
                            << " column " << check.worst_column << ", expected "
                            << check.worst_expected << " got " << check.worst_got;
  if (probe.tokens > 0) {
    EXPECT_NEAR(check.norm_ratio, 1.0, 1e-4);
  }
}

struct Ranks {
  unsigned tp, ep;
};

TEST(LayerGrid, PassesForEveryNumberOfRanksAndTokens) {  // pit76, C15, K-09
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const ActFormat act :
         {ActFormat::bf16, ActFormat::fp8, ActFormat::mxfp8, ActFormat::int8}) {
      for (const std::uint64_t tokens : {0U, 1U, 3U, 64U, 129U}) {
        const LayerSpec spec = spec_of(model->config);
        const Probe probe = test::probe_of(*model, tokens, spec.top_k);
        References references(*model, spec, probe);
        for (const Ranks ranks : {Ranks{1, 1},
                                  {2, 1},
                                  {3, 1},
                                  {4, 1},
                                  {5, 1},
                                  {6, 1},
                                  {7, 1},
                                  {8, 1},
                                  {1, 2},
                                  {1, 3},
                                  {1, 4},
                                  {1, 5},
                                  {2, 3},
                                  {3, 2},
                                  {5, 4}}) {
          const ShardPlan plan =
              make_plan(*model, {.tp = ranks.tp, .ep = ranks.ep, .act_format = act});
          expect_passes(*model, plan, spec, probe, references);
        }
        EXPECT_EQ(references.count() > 1, act != ActFormat::bf16);
      }
    }
  }
}

TEST(LayerGrid, PassesForEveryRoutingAndTopK) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format, .experts = 9});
    for (const Routing& routing : {Routing{.kind = RoutingKind::uniform},
                                   Routing{.kind = RoutingKind::zipf, .exponent = 1.5},
                                   Routing{.kind = RoutingKind::one, .expert = 8}}) {
      for (const std::uint64_t top_k : {1U, 2U, 3U, 4U, 5U, 6U, 7U, 8U, 9U}) {
        LayerSpec spec = spec_of(model->config);
        spec.top_k = top_k;
        const Probe probe = test::probe_of(*model, 17, top_k, routing, top_k);
        References references(*model, spec, probe);
        for (const Ranks ranks : {Ranks{1, 1}, Ranks{3, 1}, Ranks{2, 4}})
          expect_passes(*model, make_plan(*model, {.tp = ranks.tp, .ep = ranks.ep}), spec, probe,
                        references);
      }
    }
  }
}

TEST(LayerGrid, MaskedIdsAndDuplicatesPassAndMaskedTokensAreExactlyZero) {  // S-01, S-04, pit65
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    LayerSpec spec = spec_of(model->config);
    spec.top_k = 3;
    Probe probe = test::probe_of(*model, 40, spec.top_k);
    for (std::size_t slot = 0; slot < probe.topk_ids.size(); ++slot) {
      const std::size_t token = slot / 3;
      if (token % 4 == 1) probe.topk_ids[slot] = slot % 3 == 0 ? -1 : probe.topk_ids[slot];
      if (token % 4 == 2) probe.topk_ids[slot] = static_cast<std::int32_t>(token % 7);
      if (token % 4 == 3) probe.topk_ids[slot] = -1;
    }
    References references(*model, spec, probe);
    for (const Ranks ranks : {Ranks{1, 1}, Ranks{3, 1}, Ranks{1, 5}, Ranks{3, 2}}) {
      const ShardPlan plan = make_plan(*model, {.tp = ranks.tp, .ep = ranks.ep});
      expect_passes(*model, plan, spec, probe, references);
      const std::vector<float> y = test::run_layer(test::layer_of(*model, plan, spec), probe);
      for (std::size_t token = 3; token < 40; token += 4) {
        for (std::size_t i = 0; i < probe.hidden; ++i)
          ASSERT_EQ(test::bits_of({y[token * probe.hidden + i]})[0], 0U);
      }
    }
  }
}

TEST(LayerGrid, PassesWithoutAClampAndWithPlainSilu) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const Activation activation : {Activation::silu, Activation::clamped_swiglu}) {
      for (const double limit : {0.5, 10.0}) {
        LayerSpec spec = spec_of(model->config);
        spec.activation = activation;
        spec.activation_limit = limit;
        const Probe probe = test::probe_of(*model, 33, spec.top_k);
        References references(*model, spec, probe);
        for (const ActFormat act : test::kPlainActFormats)
          expect_passes(*model, make_plan(*model, {.tp = 3, .act_format = act}), spec, probe,
                        references);
      }
    }
  }
}

TEST(LayerGrid, PassesForEveryActivationFunction) {  // pit46, pit49
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    for (const Activation activation :
         {Activation::silu, Activation::clamped_swiglu, Activation::oai_swiglu, Activation::situ,
          Activation::gelu_tanh}) {
      LayerSpec spec = spec_of(model->config);
      spec.activation = activation;
      spec.activation_limit = 0.3;
      const Probe probe = test::probe_of(*model, 9, spec.top_k);
      References references(*model, spec, probe);
      for (const ActFormat act : test::kPlainActFormats)
        expect_passes(*model, make_plan(*model, {.tp = 3, .act_format = act}), spec, probe,
                      references);
    }
  }
  const test::TinyModel ungated({.dialect = test::TinyDialect::modelopt,
                                 .hidden = 160,
                                 .inter = 352,
                                 .layers = 1,
                                 .gated = false});
  const LayerSpec spec = spec_of(ungated->config);
  ASSERT_EQ(spec.activation, Activation::relu2);
  const Probe probe = test::probe_of(*ungated, 9, spec.top_k);
  References references(*ungated, spec, probe);
  for (const unsigned tp : {1U, 2U, 3U})
    expect_passes(*ungated, make_plan(*ungated, {.tp = tp}), spec, probe, references);
}

// Every scalar of the checkpoint is different, scale bytes cover their whole range.
TEST(LayerGrid, PassesWithDistinctGlobalsAndExtremeScales) {  // B3, K-02, pit11
  for (const BlockFormat format : test::kFormats) {
    const test::TinyModel model(format, 352, 160);
    LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 21, spec.top_k);
    for (const Activation activation : {Activation::silu, Activation::clamped_swiglu}) {
      spec.activation = activation;
      spec.activation_limit = 10.0;
      References references(*model, spec, probe);
      for (const unsigned tp : {1U, 2U, 3U, 5U})
        expect_passes(*model, make_plan(*model, {.tp = tp}), spec, probe, references);
    }
  }
}

TEST(LayerGrid, EveryPatternOfWeightsPasses) {  // pit80
  for (const BlockFormat format : test::kFormats) {
    for (const Pattern pattern : {Pattern::normal, Pattern::outliers, Pattern::constant}) {
      const RigModel model({.format = format, .pattern = pattern});
      const LayerSpec spec = spec_of(model->config);
      const Probe probe = test::probe_of(*model, 16, spec.top_k);
      References references(*model, spec, probe);
      expect_passes(*model, make_plan(*model, {.tp = 3}), spec, probe, references);
    }
  }
}

TEST(LayerGrid, TheReferenceFromPackedRanksIsTheReferenceFromTheCheckpoint) {
  for (const BlockFormat format : test::kFormats) {
    const RigModel model({.format = format});
    const LayerSpec spec = spec_of(model->config);
    const Probe probe = test::probe_of(*model, 9, spec.top_k);
    const ShardPlan plan = make_plan(*model, {.tp = 3, .ep = 2, .act_format = ActFormat::fp8});
    const LayerReference direct = make_reference(*model, 0, plan, spec, probe);
    const LayerReference packed = make_reference(plan, test::pack_all(*model, plan), spec, probe);
    EXPECT_EQ(direct.y, packed.y);
    EXPECT_EQ(direct.bound, packed.bound);
    EXPECT_EQ(direct.unquantised, packed.unquantised);
  }
}

}  // namespace
}  // namespace moxie
