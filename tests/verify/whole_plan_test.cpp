// SPDX-License-Identifier: Apache-2.0
// A plan is a claim: no number of it can be another, also under a hash that agrees.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "pack/packed_set.hpp"
#include "support/random_placement.hpp"
#include "whole_set.hpp"

namespace moxie {
namespace {

using test::WholeSet;

// Changes every number of a document by `step` in turn, with its place as "axes.1.local".
void for_each_number(const Json& json, std::uint64_t step, const std::string& place,
                     const std::function<void(const std::string&, const Json&)>& changed) {
  if (json.is_number()) {
    const std::uint64_t value = json.as_unsigned(0);
    if (value + step != ~std::uint64_t{0}) changed(place, Json(value + step));
    return;
  }
  for (std::size_t i = 0; i < json.elements().size(); ++i) {
    for_each_number(json.elements()[i], step, place + "." + std::to_string(i),
                    [&](const std::string& where, const Json& number) {
                      Json::Array elements = json.elements();
                      elements[i] = number;
                      changed(where, Json(std::move(elements)));
                    });
  }
  for (const JsonMember& member : json.members()) {
    for_each_number(member.value, step, place.empty() ? member.key : place + "." + member.key,
                    [&](const std::string& where, const Json& number) {
                      Json copy = json;
                      changed(where, copy.set(member.key, number));
                    });
  }
}

// The places of numbers that can be changed without verify's noticing.
std::vector<std::string> survivors(const WholeSet& set) {
  const auto path = set.path() / "moxie-plan.json";
  const std::string intact = test::read_bytes(path);
  std::vector<std::string> survived;
  std::size_t numbers = 0;
  const auto is_found = [&](Json plan) {
    plan.set("plan_hash", plan_hash_of(plan));
    set.write(path, plan.dump());
    for (const RankPlan& rank : set.plan().ranks) {
      set.edit_json(set.file(rank.rank, "files.json"),
                    [&](Json& list) { list.set("plan_hash", *plan.find("plan_hash")); });
    }
    try {
      return !set.verify().passed;
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ErrorCode::input || error.code() == ErrorCode::verdict)
          << error.what();
      return true;
    }
  };
  for (const std::uint64_t step : {std::uint64_t{1}, ~std::uint64_t{0}}) {
    for_each_number(Json::parse(intact, "plan"), step, "",
                    [&](const std::string& place, const Json& plan) {
                      ++numbers;
                      if (!is_found(plan)) survived.push_back(place + (step == 1 ? " +1" : " -1"));
                    });
  }
  EXPECT_GT(numbers, 300U);
  EXPECT_FALSE(is_found(Json::parse(intact, "plan")));
  return survived;
}

TEST(VerifyWholePlan, NoNumberOfThePlanCanBeAnother) {
  const WholeSet set({.config = test::narrow_v4({{"n_routed_experts", 2}})}, {.tp = 3, .ep = 2});
  EXPECT_EQ(survivors(set), std::vector<std::string>{});
}

TEST(VerifyWholePlan, NoNumberOfAMapOrOfABlobCanBeAnother) {
  const WholeSet set({.config = test::narrow_v4()},
                     {.tp = 2, .ep = 2, .placement = test::placed({{2, 0}, {1, 2}})},
                     FileLayout::kernel);
  EXPECT_EQ(survivors(set), std::vector<std::string>{});
}

}  // namespace
}  // namespace moxie
