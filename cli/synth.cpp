// SPDX-License-Identifier: Apache-2.0
// moxie synth: writes a checkpoint in a model's published layout.
#include <fmt/format.h>

#include "cli/verbs.hpp"
#include "moxie/checkpoint.hpp"
#include "moxie/report.hpp"

namespace moxie::cli {

int run_synth(const SynthArgs& args, const Console& console) {
  SynthOptions options = args.options;
  options.config =
      args.config.empty() ? synth_config(args.model) : open_checkpoint(args.config).config();
  if (args.config.empty()) options.name = args.model;
  options.progress = console.progress("synth");
  const Stopwatch watch;
  const SynthReport report = synthesise(args.out, options);
  const double seconds = watch.seconds();
  Json document;
  document.set("schema", "moxie.synth/1").set("ok", true).set("out", args.out.string());
  document.set("model", args.config.empty() ? args.model : args.config.string());
  const bool is_fp8 = report.dense == DenseFormat::fp8_block;
  const std::string_view format = is_fp8         ? "fp8"
                                  : report.dense ? name_of(*report.dense)
                                                 : name_of(report.format);
  document.set("format", format);
  document.set("dialect", report.dense ? Json() : Json(name_of(report.dialect)));
  document.set("pattern", name_of(options.pattern)).set("seed", options.seed);
  document.set("tensors", report.tensors).set("files", report.files).set("bytes", report.bytes);
  document.set("seconds", seconds).set("findings", Json::array());
  console.print(
      document,
      fmt::format("{}: {}, {} in {} ({}{}, seed {})\n", args.out.string(),
                  format_count(report.tensors, "tensor"), format_bytes(report.bytes),
                  format_count(report.files, "file"), format,
                  report.dense ? "" : fmt::format(", {} dialect", name_of(report.dialect)),
                  options.seed));
  return 0;
}

}  // namespace moxie::cli
