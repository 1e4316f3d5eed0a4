// SPDX-License-Identifier: Apache-2.0
// The options of each verb, bound to its arguments.
#pragma once

#include "cli/verbs.hpp"

// NOLINTNEXTLINE(readability-identifier-naming): the library's own name
namespace CLI {
class App;
}  // namespace CLI

namespace moxie::cli {

void add_synth_options(CLI::App* verb, SynthArgs& args);
void add_inspect_options(CLI::App* verb, InspectArgs& args);
void add_plan_options(CLI::App* verb, PlanArgs& args);
void add_pack_options(CLI::App* verb, PackArgs& args);
void add_verify_options(CLI::App* verb, VerifyArgs& args);
void add_quantize_options(CLI::App* verb, QuantizeArgs& args);
void add_doctor_options(CLI::App* verb, DoctorArgs& args);
void add_run_options(CLI::App* verb, RunArgs& args);
void add_bench_options(CLI::App* verb, BenchArgs& args);

}  // namespace moxie::cli
