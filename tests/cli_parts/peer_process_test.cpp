// SPDX-License-Identifier: Apache-2.0
// The child process of bench --vs: its answers, its ends, and what its script says without
// packages.
#include "cli/peer_process.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include "cli/bench_peer.hpp"
#include "cli/console.hpp"
#include "cli/peer_script.hpp"
#include "support/refusal.hpp"
#include "support/temp_folder.hpp"

namespace moxie::cli {
namespace {

class PeerProcessTest : public testing::Test {
 protected:
  PeerProcessTest() { settle_streams(); }  // as main does: a write to an ended child is no signal
};

PeerProcess shell(const std::string& script) { return PeerProcess({"/bin/sh", "-c", script}); }

Json request() { return Json::object().set("do", "go").set("replays", 3); }

TEST_F(PeerProcessTest, AnswersEveryLineWithALine) {
  PeerProcess peer({"/bin/sh", "-c",
                    "echo '{\"ready\": true}'; while read line; do echo \"{\\\"got\\\": $line}\"; "
                    "done"});
  EXPECT_TRUE(peer.answer().find("ready")->as_bool());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*peer.ask(request()).find("got"), request());
}

TEST_F(PeerProcessTest, KeepsWhatCameBeyondTheFirstLine) {
  PeerProcess peer = shell("printf '{\"a\": 1}\\n{\"b\":'; sleep 0.1; printf ' 2}\\n'; cat");
  EXPECT_EQ(peer.answer().find("a")->as_unsigned(), 1U);
  EXPECT_EQ(peer.answer().find("b")->as_unsigned(), 2U);
}

TEST_F(PeerProcessTest, B006SaysWhyThereIsNoAnswer) {
  const std::pair<const char*, const char*> cases[] = {
      {"exit 3", "ended without an answer"},
      {"echo nonsense", "no JSON: nonsense"},
      {"echo '[1]'", "no object: [1]"},
      {"printf '{\"half\": 1}'", "ended without an answer"},
      {"echo '{\"error\": \"missing\", \"text\": \"No module named torch\"}'",
       "missing: No module named torch"}};
  for (const auto& [script, reason] : cases) {
    SCOPED_TRACE(script);
    PeerProcess peer = shell(script);
    const Error error = test::refusal_of([&] { (void)peer.ask(request()); });
    EXPECT_EQ(error.code(), ErrorCode::environment);
    EXPECT_EQ(test::code_of(error), "MOXIE-B006");
    EXPECT_NE(error.findings().front().got.find(reason), std::string::npos) << error.what();
  }
}

TEST_F(PeerProcessTest, B006NamesAnInterpreterThatIsNotThere) {
  const Error error = test::refusal_of([] { PeerProcess({"/nowhere/python"}); });
  EXPECT_EQ(test::code_of(error), "MOXIE-B006");
  EXPECT_NE(error.findings().front().got.find("/nowhere/python"), std::string::npos);
}

TEST_F(PeerProcessTest, EndsAChildThatDoesNotListen) {
  const auto begin = std::chrono::steady_clock::now();
  {
    const PeerProcess peer = shell("sleep 60");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(PeerProcessTest, EndsWhatTheChildHasStarted) {
  const test::TempFolder folder;
  const auto late = folder.path() / "late";
  {
    PeerProcess peer = shell("(sleep 1; touch " + late.string() + ") & echo '{}'; wait");
    (void)peer.answer();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  EXPECT_FALSE(std::filesystem::exists(late));
}

TEST(PeerScript, IsTheFileInTools) {
  std::ifstream file(MOXIE_SOURCE_DIR "/tools/peers/peer.py", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  ASSERT_GT(text.size(), 1000U);
  EXPECT_EQ(text, kPeerScript);
}

TEST_F(PeerProcessTest, SaysWhichPackageIsMissing) {
  const test::TempFolder folder;
  const auto path = folder.write("peer.py", std::string(kPeerScript)).string();
  // -S and -I: no installed packages, whatever this machine has.
  PeerProcess peer({"python3", "-I", "-S", path, "torch", folder.path().string()});
  const Error error = test::refusal_of([&] { (void)peer.answer(); });
  EXPECT_EQ(test::code_of(error), "MOXIE-B006");
  EXPECT_NE(error.findings().front().got.find("missing: No module named"), std::string::npos)
      << error.what();
}

TEST(Peer, B005RefusesRanksActivationsThatNoPeerRuns) {
  ShardPlan plan;
  plan.ranks.resize(1);
  EXPECT_NO_THROW(require_peer_runs(BenchPeer::torch, plan));
  for (const ActFormat format : {ActFormat::fp8, ActFormat::fp8x2}) {
    plan.act_format = format;
    EXPECT_NO_THROW(require_peer_runs(BenchPeer::torch, plan));
  }
  plan.act_format = ActFormat::nvfp4;
  test::expect_refusal([&] { require_peer_runs(BenchPeer::torch, plan); }, ErrorCode::usage,
                       "MOXIE-B005");
  plan.act_format = ActFormat::bf16;
  plan.ranks.resize(3);
  test::expect_refusal([&] { require_peer_runs(BenchPeer::torch, plan); }, ErrorCode::usage,
                       "MOXIE-B005");
}

}  // namespace
}  // namespace moxie::cli
