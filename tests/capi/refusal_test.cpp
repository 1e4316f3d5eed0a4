// SPDX-License-Identifier: Apache-2.0
// Every refusal of moxie.h: its status, its text, and that nothing was written.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <utility>

#include "capi/c_rig.hpp"
#include "moxie/device.hpp"

namespace moxie {
namespace {

using test::RigModel;

// What the last error begins with and holds.
testing::AssertionResult refused(int status, int expected, std::string_view code,
                                 std::string_view part) {
  const std::string text = moxie_last_error();
  if (status != expected || !text.starts_with(std::string(code) + " error: ") ||
      text.find(part) == std::string::npos) {
    return testing::AssertionFailure() << "status " << status << ": " << text << "\nexpected "
                                       << expected << ", " << code << " … " << part;
  }
  return testing::AssertionSuccess();
}

class CAbiRefusals : public testing::Test {
 protected:
  CAbiRefusals()
      : handle_(test::opened(model_->checkpoint.path())),
        plan_(test::planned(handle_.get())),
        layer_(test::prepared(plan_.get())),
        probe_(test::probe_of(*model_, 4, model_->config.top_k)),
        call_(layer_.get(), probe_) {}

  int plan_with(const std::function<void(moxie_plan_options&)>& change) {
    moxie_plan_options options = test::plan_options();
    change(options);
    auto* plan = reinterpret_cast<moxie_plan*>(this);
    const int status = moxie_make_plan(handle_.get(), &options, &plan);
    EXPECT_EQ(plan, nullptr) << "a failing call leaves no handle";
    return status;
  }
  int prepare_with(const std::function<void(moxie_prepare_options&)>& change) {
    moxie_prepare_options options = test::prepare_options();
    change(options);
    auto* layer = reinterpret_cast<moxie_layer*>(this);
    const int status = moxie_prepare(plan_.get(), &options, &layer);
    EXPECT_EQ(layer, nullptr) << "a failing call leaves no handle";
    return status;
  }
  int forward_with(const std::function<void(moxie_forward_args&)>& change) {
    moxie_forward_args args = call_.args;
    change(args);
    const int status = moxie_forward(layer_.get(), &args);
    EXPECT_TRUE(std::ranges::all_of(call_.y, [](float v) { return std::isnan(v); }));
    EXPECT_EQ(call_.flags, 0U);
    return status;
  }

  RigModel model_{{}};
  test::ModelHandle handle_;
  test::PlanHandle plan_;
  test::LayerHandle layer_;
  Probe probe_;
  test::CCall call_;
};

TEST_F(CAbiRefusals, NullPointersAreNamed) {
  moxie_model* model = nullptr;
  moxie_plan* plan = nullptr;
  moxie_layer* layer = nullptr;
  const char* text = nullptr;
  std::int32_t number = 0;
  std::uint64_t bytes = 0;
  std::byte blob{};
  const moxie_plan_options plan_options = test::plan_options();
  const moxie_prepare_options prepare_options = test::prepare_options();
  moxie_model_info model_info{.struct_size = sizeof(moxie_model_info)};
  moxie_plan_info plan_info{.struct_size = sizeof(moxie_plan_info)};
  moxie_rank_info rank_info{.struct_size = sizeof(moxie_rank_info)};
  const std::pair<std::function<int()>, const char*> calls[] = {
      {[&] { return moxie_open(nullptr, &model); }, "path is null"},
      {[&] { return moxie_open("x", nullptr); }, "model is null"},
      {[&] { return moxie_describe_model(nullptr, &model_info); }, "model is null"},
      {[&] { return moxie_describe_model(handle_.get(), nullptr); }, "moxie_model_info is null"},
      {[&] { return moxie_model_layer(nullptr, 0, &number); }, "model is null"},
      {[&] { return moxie_model_layer(handle_.get(), 0, nullptr); }, "layer is null"},
      {[&] { return moxie_make_plan(nullptr, &plan_options, &plan); }, "model is null"},
      {[&] { return moxie_make_plan(handle_.get(), nullptr, &plan); },
       "moxie_plan_options is null"},
      {[&] { return moxie_make_plan(handle_.get(), &plan_options, nullptr); }, "plan is null"},
      {[&] { return moxie_plan_json(nullptr, &text); }, "plan is null"},
      {[&] { return moxie_plan_json(plan_.get(), nullptr); }, "text is null"},
      {[&] { return moxie_describe_plan(nullptr, &plan_info); }, "plan is null"},
      {[&] { return moxie_describe_plan(plan_.get(), nullptr); }, "moxie_plan_info is null"},
      {[&] { return moxie_describe_rank(nullptr, 0, &rank_info); }, "plan is null"},
      {[&] { return moxie_describe_rank(plan_.get(), 0, nullptr); }, "moxie_rank_info is null"},
      {[&] { return moxie_prepare(nullptr, &prepare_options, &layer); }, "plan is null"},
      {[&] { return moxie_prepare(plan_.get(), nullptr, &layer); },
       "moxie_prepare_options is null"},
      {[&] { return moxie_prepare(plan_.get(), &prepare_options, nullptr); }, "layer is null"},
      {[&] { return moxie_workspace_size(nullptr, 1, &bytes); }, "layer is null"},
      {[&] { return moxie_workspace_size(layer_.get(), 1, nullptr); }, "bytes is null"},
      {[&] { return moxie_forward(nullptr, &call_.args); }, "layer is null"},
      {[&] { return moxie_forward(layer_.get(), nullptr); }, "moxie_forward_args is null"},
      {[&] { return moxie_rows_workspace_size(nullptr, 1, &bytes); }, "layer is null"},
      {[&] { return moxie_rows_workspace_size(layer_.get(), 1, nullptr); }, "bytes is null"},
      {[&] { return moxie_rows_workspace_size_of(nullptr, 1, MOXIE_DTYPE_F32, &bytes); },
       "layer is null"},
      {[&] { return moxie_rows_workspace_size_of(layer_.get(), 1, MOXIE_DTYPE_F32, nullptr); },
       "bytes is null"},
      {[&] { return moxie_forward_rows(nullptr, nullptr); }, "layer is null"},
      {[&] { return moxie_forward_rows(layer_.get(), nullptr); }, "moxie_rows_args is null"},
      {[&] { return moxie_warm_up(nullptr, &call_.args, nullptr); }, "layer is null"},
      {[&] { return moxie_warm_up(layer_.get(), nullptr, nullptr); }, "moxie_forward_args is null"},
      {[&] { return moxie_pack_expert(nullptr, 0, 0, 0, &blob, 1); }, "plan is null"},
      {[&] { return moxie_pack_expert(plan_.get(), 0, 0, 0, nullptr, 1); }, "blob is null"},
      {[&] { return moxie_reload(nullptr, 0, 0, &blob, 1); }, "layer is null"},
      {[&] { return moxie_reload(layer_.get(), 0, 0, nullptr, 1); }, "blob is null"},
  };
  for (const auto& [call, part] : calls)
    EXPECT_TRUE(refused(call(), MOXIE_STATUS_USAGE, "MOXIE-A001", part));
  using Args = moxie_forward_args;
  const std::pair<std::function<void(Args&)>, const char*> fields[] = {
      {[](Args& args) { args.x = nullptr; }, ": x is null"},
      {[](Args& args) { args.y = nullptr; }, ": y is null"},
      {[](Args& args) { args.topk_ids = nullptr; }, "topk_ids is null"},
      {[](Args& args) { args.topk_weights = nullptr; }, "topk_weights is null"},
      {[](Args& args) { args.flags = nullptr; }, "flags is null"},
      {[](Args& args) { args.workspace = nullptr; }, "workspace is null"},
  };
  for (const auto& [change, part] : fields)
    EXPECT_TRUE(refused(forward_with(change), MOXIE_STATUS_USAGE, "MOXIE-A001", part));
}

TEST_F(CAbiRefusals, StructSizesOfNoVersionAreRefused) {
  for (const std::uint32_t size : {0U, 4U, 1000U}) {
    const std::string got = "got " + std::to_string(size);
    EXPECT_TRUE(refused(plan_with([&](auto& options) { options.struct_size = size; }),
                        MOXIE_STATUS_USAGE, "MOXIE-A002", got));
    EXPECT_TRUE(refused(prepare_with([&](auto& options) { options.struct_size = size; }),
                        MOXIE_STATUS_USAGE, "MOXIE-A002", got));
    EXPECT_TRUE(refused(forward_with([&](auto& args) { args.struct_size = size; }),
                        MOXIE_STATUS_USAGE, "MOXIE-A002", got));
    moxie_model_info model{.struct_size = size};
    EXPECT_TRUE(refused(moxie_describe_model(handle_.get(), &model), MOXIE_STATUS_USAGE,
                        "MOXIE-A002", got));
    EXPECT_EQ(model.hidden, 0U);
    moxie_plan_info plan{.struct_size = size};
    EXPECT_TRUE(refused(moxie_describe_plan(plan_.get(), &plan), MOXIE_STATUS_USAGE, "MOXIE-A002",
                        "moxie_plan_info"));
    moxie_rank_info rank{.struct_size = size};
    EXPECT_TRUE(refused(moxie_describe_rank(plan_.get(), 0, &rank), MOXIE_STATUS_USAGE,
                        "MOXIE-A002", "moxie_rank_info"));
  }
  EXPECT_TRUE(refused(plan_with([](auto& options) { options.struct_size = 1000; }),
                      MOXIE_STATUS_USAGE, "MOXIE-A002", "newer moxie.h"));
}

TEST_F(CAbiRefusals, FilesThatAreNoModelAreInput) {
  auto* model = reinterpret_cast<moxie_model*>(this);
  EXPECT_TRUE(refused(moxie_open("no/such/folder", &model), MOXIE_STATUS_INPUT, "MOXIE-C001",
                      "no/such/folder"));
  EXPECT_EQ(model, nullptr);
}

TEST_F(CAbiRefusals, PlansThatCanNotBeAreRefusedWithTheReason) {
  const auto usage = [&](auto change, const char* code, const char* part) {
    EXPECT_TRUE(refused(plan_with(change), MOXIE_STATUS_USAGE, code, part));
  };
  using Options = moxie_plan_options;
  usage([](Options& o) { o.target = "sm89"; }, "MOXIE-A003", "cpu, sm90, sm100, sm120");
  usage([](Options& o) { o.target = ""; }, "MOXIE-A003", "target is no name");
  usage([](Options& o) { o.act_format = "fp7"; }, "MOXIE-A003", "got \"fp7\"");
  usage([](Options& o) { o.format = "int4"; }, "MOXIE-A003", "mxfp4, nvfp4");
  usage([](Options& o) { o.act_scale = "best"; }, "MOXIE-A003", "warmup");
  usage([](Options& o) { o.act_margin = -1; }, "MOXIE-A003", "act_margin");
  usage([](Options& o) { o.act_margin = std::nan(""); }, "MOXIE-A003", "act_margin");
  usage([](Options& o) { o.reserved = 1; }, "MOXIE-A003", "reserved");
  usage([](Options& o) { o.tp = 65; }, "MOXIE-P001", "expected 1 to 64, got 65");
  usage([](Options& o) { o.format = "nvfp4"; }, "MOXIE-P006", "expected mxfp4, got nvfp4");
  usage([](Options& o) { o.act_scale = "row"; }, "MOXIE-P011", "nvfp4");
  EXPECT_TRUE(refused(plan_with([](Options& o) { o.ep = 8; }), MOXIE_STATUS_UNSUPPORTED,
                      "MOXIE-P004", "expected ep <= 7, got 8"));
  // One line for each kernel's reason.
  EXPECT_TRUE(refused(plan_with([](Options& o) {
                        o.act_format = "int8";
                        o.target = "sm90";
                      }),
                      MOXIE_STATUS_UNSUPPORTED, "MOXIE-P002", "cpu.portable.experts"));
  const std::string text = moxie_last_error();
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(text, '\n')) + 1, kernel_catalog().size());
}

TEST_F(CAbiRefusals, APackedFolderRefusesOptionsThatDiffer) {
  const test::TempFolder folder;
  pack_to_folder(*model_, make_plan(*model_, {.tp = 3}), {.out = folder.path() / "packed"});
  handle_ = test::opened(folder.path() / "packed");
  using Options = moxie_plan_options;
  const std::pair<std::function<void(Options&)>, const char*> changes[] = {
      {[](Options& o) { o.tp = 2; }, "tp; expected 3, got 2"},
      {[](Options& o) { o.ep = 2; }, "ep; expected 1, got 2"},
      {[](Options& o) { o.target = "sm90"; }, "target; expected cpu, got sm90"},
      {[](Options& o) { o.act_format = "mxfp8"; }, "act_format; expected bf16, got mxfp8"},
      {[](Options& o) { o.format = "nvfp4"; }, "format; expected mxfp4, got nvfp4"},
      {[](Options& o) { o.act_scale = "row"; }, "got act_scale"},
      {[](Options& o) { o.act_margin = 2; }, "got act_margin"},
      {[](Options& o) { o.kernel_align = 512; }, "kernel_align"},
  };
  for (const auto& [change, part] : changes)
    EXPECT_TRUE(refused(plan_with(change), MOXIE_STATUS_USAGE, "MOXIE-R013", part));
  plan_ = test::planned(handle_.get());
  EXPECT_TRUE(refused(prepare_with([](auto& o) { o.layer = 4; }), MOXIE_STATUS_INPUT, "MOXIE-K005",
                      "layer 4"));
}

TEST_F(CAbiRefusals, LayersThatCanNotBeAreRefusedWithTheReason) {
  using Options = moxie_prepare_options;
  const auto usage = [&](auto change, const char* code, const char* part) {
    EXPECT_TRUE(refused(prepare_with(change), MOXIE_STATUS_USAGE, code, part));
  };
  usage([](Options& o) { o.reduction = 0; }, "MOXIE-A003", "MOXIE_REDUCTION_LAYER (1)");
  usage([](Options& o) { o.reduction = 3; }, "MOXIE-A003", "got 3");
  usage([](Options& o) { o.rank = 1; }, "MOXIE-A003", "rank 0");
  usage([](Options& o) { o.reduction = MOXIE_REDUCTION_CALLER, o.rank = 1; }, "MOXIE-K004",
        "expected a rank below 1, got 1");
  usage([](Options& o) { o.top_k = 8; }, "MOXIE-R007", "expected at most 7, got 8");
  EXPECT_TRUE(refused(prepare_with([](Options& o) { o.layer = 9; }), MOXIE_STATUS_INPUT,
                      "MOXIE-M011", "layer 9"));
}

TEST_F(CAbiRefusals, ATargetThatIsNotHereIsRefusedBeforeWeightsAreRead) {
  moxie_plan_options options = test::plan_options();
  options.target = "sm90";
  plan_ = test::planned(handle_.get(), options);
  const GpuReport gpus = list_gpus();
  if (device_refusal(Target::sm90, gpus).empty()) GTEST_SKIP() << "this machine is an sm90";
  // A layer that does not exist would be refused next.
  EXPECT_TRUE(refused(prepare_with([](auto& o) { o.layer = 9; }), MOXIE_STATUS_ENVIRONMENT,
                      "MOXIE-E004", "expected sm90"));
}

TEST_F(CAbiRefusals, IndicesOutsideAreRefused) {
  std::int32_t layer = 0;
  EXPECT_TRUE(refused(moxie_model_layer(handle_.get(), 1, &layer), MOXIE_STATUS_USAGE, "MOXIE-A003",
                      "an index below 1, got 1"));
  moxie_rank_info rank{.struct_size = sizeof(moxie_rank_info)};
  EXPECT_TRUE(refused(moxie_describe_rank(plan_.get(), 1, &rank), MOXIE_STATUS_USAGE, "MOXIE-K004",
                      "got 1"));
}

TEST_F(CAbiRefusals, CallsThatTheLayerDoesNotTakeSayWhichFieldIsWrong) {
  using Args = moxie_forward_args;
  const auto usage = [&](auto change, const char* code, const char* part) {
    EXPECT_TRUE(refused(forward_with(change), MOXIE_STATUS_USAGE, code, part));
  };
  usage([](Args& a) { a.x_dtype = 0; }, "MOXIE-A003", "x_dtype");
  usage([](Args& a) { a.y_dtype = 3; }, "MOXIE-A003", "y_dtype");
  usage([](Args& a) { a.reserved = 1; }, "MOXIE-A003", "reserved");
  usage([](Args& a) { a.x_row_stride = 159; }, "MOXIE-A004", "x_row_stride is less than a row");
  usage([](Args& a) { a.y_row_stride = 0; }, "MOXIE-A004", "at least hidden, 160, got 0");
  usage([](Args& a) { a.x = static_cast<const char*>(a.x) + 1; }, "MOXIE-A004", "x is not aligned");
  usage([](Args& a) { a.y = static_cast<char*>(a.y) + 2; }, "MOXIE-A004", "y is not aligned");
  usage([](Args& a) { a.stream = &a; }, "MOXIE-A004", "stream");
  usage([](Args& a) { a.workspace_bytes -= 1; }, "MOXIE-A005",
        ("at least " + std::to_string(call_.args.workspace_bytes) + " bytes").c_str());
  usage([](Args& a) { a.tokens = 5; }, "MOXIE-A005", "for 5 tokens");
  usage([](Args& a) { a.tokens = std::uint64_t{1} << 62; }, "MOXIE-R008", "more slots");
  std::uint64_t bytes = 1;
  EXPECT_TRUE(refused(moxie_workspace_size(layer_.get(), std::uint64_t{1} << 62, &bytes),
                      MOXIE_STATUS_USAGE, "MOXIE-R008", "more slots"));
  EXPECT_EQ(bytes, 0U);
  // Without tokens there is nothing to point at.
  EXPECT_EQ(forward_with([](Args& a) {
              a.tokens = 0;
              a.x = a.topk_ids = nullptr;
              a.topk_weights = nullptr;
              a.y = nullptr;
            }),
            MOXIE_STATUS_OK);
}

TEST_F(CAbiRefusals, WarmUpIsForItsPolicyAndComesFirst) {
  EXPECT_TRUE(refused(moxie_warm_up(layer_.get(), &call_.args, nullptr), MOXIE_STATUS_USAGE,
                      "MOXIE-R017", "warm-up"));
  moxie_plan_options options = test::plan_options();
  options.act_format = "nvfp4";
  options.act_scale = "warmup";
  plan_ = test::planned(handle_.get(), options);
  layer_ = test::prepared(plan_.get());
  test::CCall call(layer_.get(), probe_);
  EXPECT_TRUE(refused(moxie_forward(layer_.get(), &call.args), MOXIE_STATUS_USAGE, "MOXIE-R017",
                      "moxie_warm_up()"));
  call.args.workspace_bytes = 1;
  EXPECT_TRUE(refused(moxie_warm_up(layer_.get(), &call.args, nullptr), MOXIE_STATUS_USAGE,
                      "MOXIE-A005", "too small"));
}

TEST_F(CAbiRefusals, BlobsOfOtherExpertsOrSizesChangeNothing) {
  const std::vector<float> before = test::c_forward(layer_.get(), probe_);
  moxie_plan_info info{.struct_size = sizeof(moxie_plan_info)};
  ASSERT_EQ(moxie_describe_plan(plan_.get(), &info), MOXIE_STATUS_OK);
  std::vector<std::byte> blob(info.blob_bytes, std::byte{0xFF});  // no scale is a number
  const auto pack = [&](std::uint32_t rank, std::int32_t layer, std::uint64_t expert,
                        std::uint64_t bytes) {
    return moxie_pack_expert(plan_.get(), rank, layer, expert, blob.data(), bytes);
  };
  EXPECT_TRUE(refused(pack(1, 0, 0, blob.size()), MOXIE_STATUS_USAGE, "MOXIE-K004", "rank 1"));
  EXPECT_TRUE(refused(pack(0, 3, 0, blob.size()), MOXIE_STATUS_INPUT, "MOXIE-M011", "layer 3"));
  EXPECT_TRUE(refused(pack(0, 0, 7, blob.size()), MOXIE_STATUS_USAGE, "MOXIE-R009", "got 7"));
  EXPECT_TRUE(refused(pack(0, 0, 0, 8), MOXIE_STATUS_USAGE, "MOXIE-A004", "got 8"));
  const auto reload = [&](std::uint32_t rank, std::uint64_t expert, std::uint64_t bytes) {
    return moxie_reload(layer_.get(), rank, expert, blob.data(), bytes);
  };
  EXPECT_TRUE(refused(reload(0, 0, 8), MOXIE_STATUS_USAGE, "MOXIE-A004", "got 8"));
  EXPECT_TRUE(refused(reload(0, 7, blob.size()), MOXIE_STATUS_USAGE, "MOXIE-R009", "expert 7"));
  EXPECT_TRUE(refused(reload(1, 0, blob.size()), MOXIE_STATUS_USAGE, "MOXIE-R009", "rank 1"));
  EXPECT_TRUE(refused(reload(0, 0, blob.size()), MOXIE_STATUS_INPUT, "MOXIE-R003", "scale"));
  EXPECT_EQ(test::bits_of(test::c_forward(layer_.get(), probe_)), test::bits_of(before));
}

TEST_F(CAbiRefusals, EachThreadHasItsOwnText) {
  moxie_model* model = nullptr;
  ASSERT_EQ(moxie_open("here", &model), MOXIE_STATUS_INPUT);
  const std::string mine = moxie_last_error();
  std::string before;
  std::string theirs;
  std::thread other([&] {
    before = moxie_last_error();
    moxie_model* theirs_too = nullptr;
    EXPECT_EQ(moxie_open("there", &theirs_too), MOXIE_STATUS_INPUT);
    theirs = moxie_last_error();
  });
  other.join();
  EXPECT_EQ(before, "") << "a thread begins without";
  EXPECT_NE(theirs.find("there"), std::string::npos) << theirs;
  EXPECT_EQ(moxie_last_error(), mine);
  EXPECT_NE(mine.find("here"), std::string::npos);
  // A call that succeeds leaves the text.
  std::uint64_t bytes = 0;
  ASSERT_EQ(moxie_workspace_size(layer_.get(), 1, &bytes), MOXIE_STATUS_OK);
  EXPECT_EQ(moxie_last_error(), mine);
}

// moxie_rank_info has a first and a last expert, and nothing else to say it with.
TEST_F(CAbiRefusals, ASetWhoseExpertsAreNoRangesIsNamed) {
  const test::TempFolder folder;
  const ShardPlan plan = make_plan(*model_, {.ep = 2, .placement = {PlacementKind::interleaved}});
  (void)pack_to_folder(*model_, plan, {.out = folder.path() / "packed"});
  const test::ModelHandle set = test::opened(folder.path() / "packed");
  const moxie_plan_options options = test::plan_options();
  moxie_plan* made = nullptr;
  EXPECT_TRUE(refused(moxie_make_plan(set.get(), &options, &made), MOXIE_STATUS_UNSUPPORTED,
                      "MOXIE-A006", "interleaved"));
  EXPECT_EQ(made, nullptr);
}

}  // namespace
}  // namespace moxie
