// SPDX-License-Identifier: Apache-2.0
// Two pieces of work at the same time.
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/parallel.hpp"

namespace moxie {
namespace {

std::string thrown_by(const std::function<void()>& beside, const std::function<void()>& body) {
  try {
    run_beside(beside, body);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "nothing";
}

TEST(RunBeside, BothRunAtTheSameTimeAndTheBodyOnTheCallersThread) {
  std::atomic<bool> begun{false};
  std::thread::id body;
  run_beside([&] { begun = true; },
             [&] {
               while (!begun) std::this_thread::yield();
               body = std::this_thread::get_id();
             });
  EXPECT_EQ(body, std::this_thread::get_id());
}

TEST(RunBeside, ThrowsWhatTheBodyThrowsElseWhatTheOtherThrows) {
  const auto fail = [](const char* text) { return [text] { throw std::runtime_error(text); }; };
  EXPECT_EQ(thrown_by(fail("beside"), fail("body")), "body");
  EXPECT_EQ(thrown_by(fail("beside"), [] {}), "beside");
  EXPECT_EQ(thrown_by([] {}, fail("body")), "body");
  EXPECT_EQ(thrown_by([] {}, [] {}), "nothing");
}

}  // namespace
}  // namespace moxie
