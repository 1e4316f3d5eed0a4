// SPDX-License-Identifier: Apache-2.0
// What the bytes and products of a point cost at least on a GPU.
#pragma once

#include <optional>
#include <vector>

#include "cli/bench_record.hpp"
#include "moxie/measure.hpp"

namespace moxie::cli {

// 1e12 flops per second that dense products of this format reach on an H200, medians of 150 ms:
// measured once with another library, not in this process. nullopt for what was not measured.
std::optional<double> stated_tflops(const ShardPlan& plan);

// The larger of the time to read the weights that a set touches and that of its products; the mean
// over the sets.
BenchFloor floor_of(const ShardPlan& plan, const std::vector<BenchSetWork>& sets,
                    const ReadCurve& curve);

}  // namespace moxie::cli
