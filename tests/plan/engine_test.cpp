// SPDX-License-Identifier: Apache-2.0
// T1: which combinations of an engine's backends a padded plan is given to.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "moxie/engines.hpp"
#include "moxie/synth.hpp"
#include "plan/plan_model.hpp"

namespace moxie {
namespace {

MoeModel flash(const std::string& model_type = "deepseek_v4") {
  MoeModel model = test::plan_model({}, BlockFormat::mxfp4);
  model.config = read_config(synth_config("deepseek-v4-flash"), Json());
  model.config.model_type = model_type;
  return model;
}

const PlanOptions kVetted = {
    .tp = 3,
    .target = Target::sm120,
    .engine = EngineBackends{"FLASHINFER_MLA_SPARSE_DSV4", "flashinfer_cutlass"}};

std::vector<Finding> refusal_of(const MoeModel& model, const PlanOptions& options) {
  try {
    make_plan(model, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unsupported);
    return error.findings();
  }
  ADD_FAILURE() << "the plan was not refused";
  return {};
}

TEST(Engine, TheVettedCombinationTakesAPaddedPlanWithItsOwnAlignment) {  // T1
  const ShardPlan plan = make_plan(flash(), kVetted);
  EXPECT_FALSE(plan.identity);
  EXPECT_EQ(plan.inter().local, Elems{704});
  EXPECT_EQ(plan.inter().kernel, Elems{768});
  EXPECT_EQ(plan.find(Axis::heads)->virtual_global, Elems{72});
  EXPECT_EQ(plan.find(Axis::output_groups)->virtual_global, Elems{9});
  EXPECT_EQ(plan.find(Axis::shared_inter)->virtual_global, Elems{2304});
  EXPECT_EQ(plan.find(Axis::vocab)->virtual_global, Elems{129408});
  EXPECT_EQ(plan.kernel, "flashinfer_cutlass");
  ASSERT_EQ(plan.considered.size(), vetted_tuples().size());
  EXPECT_TRUE(plan.considered.front().refusal.empty());
}

TEST(Engine, EveryChangeOfOneElementIsRefusedByItsName) {  // T1
  struct Change {
    std::string element;
    std::string got;
    std::function<void(PlanOptions&, std::string&)> make;
  };
  const std::vector<Change> changes = {
      {"model type", "deepseek_v41",
       [](PlanOptions&, std::string& type) { type = "deepseek_v41"; }},
      {"device capability", "9.0",
       [](PlanOptions& options, std::string&) { options.target = Target::sm90; }},
      {"device capability", "10.0",
       [](PlanOptions& options, std::string&) { options.target = Target::sm100; }},
      {"device capability", "none",
       [](PlanOptions& options, std::string&) { options.target = Target::cpu; }},
      {"attention backend", "FLASHMLA_SPARSE",
       [](PlanOptions& options, std::string&) { options.engine->attention = "FLASHMLA_SPARSE"; }},
      // Names are the engine's own: another spelling is another name.
      {"attention backend", "flashinfer_mla_sparse_dsv4",
       [](PlanOptions& options, std::string&) {
         options.engine->attention = "flashinfer_mla_sparse_dsv4";
       }},
      {"MoE backend", "flashinfer_trtllm",
       [](PlanOptions& options, std::string&) { options.engine->moe = "flashinfer_trtllm"; }},
      {"parallelism", "expert parallel 2",
       [](PlanOptions& options, std::string&) { options.ep = 2; }},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.element + " " + change.got);
    PlanOptions options = kVetted;
    std::string model_type = "deepseek_v4";
    change.make(options, model_type);
    const std::vector<Finding> findings = refusal_of(flash(model_type), options);
    ASSERT_EQ(findings.size(), 1U);
    EXPECT_EQ(findings[0].code, "MOXIE-P017");
    EXPECT_EQ(findings[0].got, change.got);
    EXPECT_TRUE(findings[0].expected.starts_with(change.element)) << findings[0].expected;
    EXPECT_NE(findings[0].message.find("heads, output_groups, shared_inter, vocab"),
              std::string::npos);
    // A capability is what --target says.
    const bool of_target = change.element == "device capability";
    const std::string target = "of --target " + std::string(name_of(options.target));
    EXPECT_EQ(findings[0].message.ends_with(target), of_target) << findings[0].message;
    EXPECT_EQ(findings[0].hint.starts_with("say --target"), of_target) << findings[0].hint;
  }
}

TEST(Engine, EveryElementThatDiffersIsNamed) {
  PlanOptions options = kVetted;
  options.target = Target::sm90;
  options.engine = EngineBackends{"A", "B"};
  options.ep = 2;
  EXPECT_EQ(refusal_of(flash(), options).size(), 4U);
}

// Nothing is enlarged: the engine sees the model as it is published.
TEST(Engine, APlanWithoutPaddingNeedsNoVetting) {
  for (const unsigned tp : {1U, 2U, 4U, 8U}) {
    const ShardPlan plan = make_plan(
        flash(), {.tp = tp, .ep = 2, .target = Target::sm90, .engine = EngineBackends{"A", "B"}});
    EXPECT_TRUE(plan.identity);
    EXPECT_EQ(plan.inter().kernel, plan.inter().local);
    EXPECT_FALSE(plan.considered.front().refusal.empty());
  }
}

// Any axis counts, not only the experts' own.
TEST(Engine, PaddingOfTheVocabularyAloneNeedsVetting) {
  MoeModel model = flash();
  model.config.v4->vocab += 2;
  const std::vector<Finding> findings =
      refusal_of(model, {.target = Target::sm90, .engine = EngineBackends{"A", "B"}});
  EXPECT_NE(findings.front().message.find("(vocab)"), std::string::npos);
}

TEST(Engine, BackendsThatFuseExpertParallelismAreRefusedWhateverThePlan) {
  for (const char* moe : {"deep_gemm_mega_moe", "DEEPEP_LOW_LATENCY", "flashinfer_all2allv"}) {
    for (const unsigned tp : {1U, 3U}) {
      PlanOptions options = kVetted;
      options.tp = tp;
      options.engine->moe = moe;
      const std::vector<Finding> findings = refusal_of(flash(), options);
      EXPECT_EQ(findings.front().code, "MOXIE-P018") << moe;
      EXPECT_EQ(findings.front().got, moe);
    }
  }
}

// Without an engine moxie's own kernels run the plan, and any cut of experts is theirs.
TEST(Engine, ExpertParallelismWithPaddingNeedsNoVettingWithoutAnEngine) {
  EXPECT_NO_THROW(make_plan(flash(), {.tp = 3, .ep = 2}));
}

TEST(Engine, APlanForAnEngineReadsBackAndAnEditedOneDoesNot) {
  const ShardPlan plan = make_plan(flash(), kVetted);
  const Json document = to_json(plan);
  const ShardPlan back = plan_from_json(document, "plan");
  EXPECT_EQ(back.engine, plan.engine);
  EXPECT_EQ(to_json(back).dump(), document.dump());
  Json engine = *document.find("engine");
  engine.set("attention", "FLASHMLA_SPARSE");
  EXPECT_THROW(plan_from_json(Json(document).set("engine", std::move(engine)), "plan"), Error);
}

TEST(Engine, ADraftModelIsCutAsItsMainModelIs) {  // T1
  const ShardPlan main = make_plan(flash(), {.tp = 3});
  MoeModel draft = flash();
  draft.config.experts = 128;  // its own experts, the same cut
  EXPECT_NO_THROW(require_same_cut(main, make_plan(draft, {.tp = 3})));
  EXPECT_THROW(require_same_cut(main, make_plan(draft, {.tp = 2})), Error);
  EXPECT_THROW(require_same_cut(main, make_plan(draft, {.tp = 3, .kernel_align = 128})), Error);
  draft.config.v4->vocab += 64 * 3;
  try {
    require_same_cut(main, make_plan(draft, {.tp = 3}));
    ADD_FAILURE() << "another vocabulary was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.findings().front().code, "MOXIE-P019");
    EXPECT_EQ(error.findings().front().where.axis, "vocab");
  }
}

}  // namespace
}  // namespace moxie
