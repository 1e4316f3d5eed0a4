// SPDX-License-Identifier: Apache-2.0
// The proofs: a packed set holds the checkpoint's bytes, and a layer's numbers are within a derived
// bound of a reference in double precision.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/layer.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "moxie/probe.hpp"
#include "moxie/status.hpp"

namespace moxie {

struct VerifyReport {
  bool passed = false;
  std::string plan_hash;
  unsigned ranks = 0;
  std::vector<int> layers;
  std::uint64_t tensors = 0;     // source tensors compared
  std::uint64_t real_bytes = 0;  // bytes found equal to the source
  std::uint64_t tail_bytes = 0;  // bytes found zero, or minus infinity where the cut says so
  std::uint64_t files = 0;
  std::vector<Finding>
      findings;  // errors name tensor, rank, unit and offset of the first difference
};

// What else has to pass before a proof is written; called once, after the bytes were compared.
using FurtherCheck = std::function<bool(const VerifyReport& bytes)>;

// Checks a folder written by pack_to_folder against its source: the real parts of all ranks, joined
// in rank order, cover and equal every source tensor; every tail is zero; file sizes, checksums and
// the plan's hash hold. When everything passes, `further` too, writes DIR/moxie-proof.json, or
// warns that it could not (MOXIE-V012); when not, or on any error that speaks of the set, removes
// an old one. Error(unsupported) of `further` does not, where the bytes passed. Errors:
// Error(input) when DIR is no packed set; Error(verdict) MOXIE-V007 when it is one of another
// model; those of `further`.
MOXIE_API VerifyReport verify_packed(const std::filesystem::path& dir, const MoeModel& source,
                                     const Progress& progress = {},
                                     const FurtherCheck& further = {});

// What padding adds to the numbers of a layer, and whether the parts of all ranks add up to the
// whole model's. Virtual heads hold what attention gives queries of zeros: an average of values.
struct PaddingCheck {
  bool passed = false;
  int layer = 0;
  std::uint64_t tokens = 0;
  std::uint64_t virtual_heads = 0;  // over all tensor-parallel ranks, as the next three
  std::uint64_t virtual_groups = 0;
  std::uint64_t virtual_columns = 0;            // of the shared experts
  std::optional<std::uint64_t> virtual_rows{};  // of the vocabulary; nothing where it is absent
  std::uint64_t zero_products = 0;              // of padding alone, found exactly zero
  double max_err_over_bound = 0;  // of sums over ranks against the source; infinite for none
  // MOXIE-V009 and MOXIE-V010: at most 20. MOXIE-K018 (warning) for each tensor of the source that
  // holds a value that is no number: what it enters is not judged. MOXIE-V008 (note) for a set or
  // source without the vocabulary, which was then not checked.
  std::vector<Finding> findings = {};
};
struct PaddingOptions {
  int layer = 0;  // draft blocks count after the last layer
  std::uint64_t tokens = 2;
  std::uint64_t seed = 0;
  Progress progress{};  // steps done; answering false stops with Error(interrupted)
};
// In double precision on the packed bytes of one layer of a set that holds all of a DeepSeek-V4
// model's tensors. Padding: products of virtual rows and columns of wq_b, wo_a, wo_b, the shared
// experts, head and embedding are exactly zero whatever they are multiplied with, none of their
// values is -0, their tiles have the smallest scale, and sinks of virtual heads are minus infinity.
// Sums: attention values of real heads and logits have the source's bits; output path and shared
// expert of all ranks add up to the source's within the rounding of the sums. Errors:
// Error(unsupported) MOXIE-V011 for a set or source without the layer's tensors.
MOXIE_API PaddingCheck check_padding(const std::filesystem::path& dir, const MoeModel& source,
                                     const PaddingOptions& options = {});

// The right result of one call, in double precision on exactly dequantised weights, with moxie's
// own activation quantisation (docs/formats.md). All arrays are [tokens, hidden].
//
// With the engine's own values between the products (LayerIo::act_tap, joined_acts) the reference
// starts the down product from them, and says where they are not what x and the weights allow. The
// two stages are then judged apart, each with the rounding of its own sums only.
struct LayerReference {
  std::uint64_t tokens = 0;
  std::uint64_t hidden = 0;
  std::vector<double> y;
  std::vector<double> bound;  // how far a correct fp32 engine may be from y, before the sum over
                              // ranks and the final rounding
  std::vector<double>
      magnitude;  // sum of |weight| |w2| |a|: what the rounding of the sum over ranks scales with
  std::vector<double> unquantised;  // y without quantised activations

  // The engine's value farthest outside the interval that it may lie in.
  struct ActDeviation {
    std::uint64_t outside = 0;  // values that are; 0: the rest means nothing
    std::uint64_t token = 0;
    std::uint64_t choice = 0;
    std::uint64_t column = 0;  // of the intermediate axis
    double least = 0;
    double most = 0;
    double got = 0;
  } act;

  // Gates and ups that reached the activation limit. 0: the call does not show whether an engine
  // clamps.
  std::uint64_t clamped = 0;
};

// Columns at which the ranks' parts of the intermediate axis begin, when the activation format
// counts its groups from there, or has scales of their own for them; empty for formats without
// groups. Plans with the same boundaries share a reference, but for nvfp4 activations under the
// policies warmup and dynamic, whose scales depend on the ranks too.
MOXIE_API std::vector<std::uint64_t> group_boundaries(const ShardPlan& plan);

struct ReferenceOptions {
  // [tokens, top_k, inter], as joined_acts() gives it; empty: everything starts from x.
  std::span<const float> act{};
  // nvfp4 activations, policy warmup: the frozen scales of every rank, as MoeLayer::act_scales()
  // gives them. A reference made from a layer takes the layer's own.
  std::span<const ActScales> act_scales{};
  Progress progress{};  // experts done; answering false stops with Error(interrupted)
};

// From the checkpoint's own tensors; slow on purpose, parallel over experts. The probe must be
// routed. Errors: as pack() for a bad scale or scalar; Error(unsupported) MOXIE-R001 for an
// activation function or format without a reference.
MOXIE_API LayerReference make_reference(const MoeModel& model, int layer, const ShardPlan& plan,
                                        const LayerSpec& spec, const Probe& probe,
                                        const ReferenceOptions& options = {});
// From packed experts of every rank of the plan, in rank order.
MOXIE_API LayerReference make_reference(const ShardPlan& plan, std::span<const PackedExperts> ranks,
                                        const LayerSpec& spec, const Probe& probe,
                                        const ReferenceOptions& options = {});
// From the experts that a layer holds; it must hold every rank.
MOXIE_API LayerReference make_reference(const MoeLayer& layer, const Probe& probe,
                                        const ReferenceOptions& options = {});

// The taps of all ranks as one array [tokens, top_k, inter] at the checkpoint's width; rows of
// masked slots are zero. `taps` is what a layer that holds every rank wrote to LayerIo::act_tap.
MOXIE_API std::vector<float> joined_acts(const ShardPlan& plan, const Probe& probe,
                                         std::span<const float> taps);

// A result held against its reference.
struct LayerCheck {
  bool passed = false;
  double max_err_over_bound =
      0;  // infinite when an element is not finite or differs where nothing may
  std::uint64_t worst_token = 0;  // where that is
  std::uint64_t worst_column = 0;
  double worst_expected = 0;
  double worst_got = 0;
  double worst_bound = 0;
  double relative_l2 = 0;     // |y - reference| / |reference|
  double worst_row = 0;       // largest relative L2 of a token's row
  double norm_ratio = 1;      // |y| / |reference|
  double unquantised_l2 = 0;  // relative L2 against activations that were not quantised
  std::vector<double> bound;  // [tokens, hidden] complete: with the ranks and the final rounding
  std::vector<Finding> findings;  // MOXIE-R010, MOXIE-R014 when not passed
};

// `output` is the type to which y was rounded last, f32 or bf16.
MOXIE_API LayerCheck check_output(std::span<const float> y, const LayerReference& reference,
                                  const ShardPlan& plan, DType output = DType::f32);

// Runs the layer on the probe, with a poisoned workspace, and checks what it returns.
MOXIE_API LayerCheck check_layer(const MoeLayer& layer, const LayerReference& reference,
                                 const Probe& probe);

}  // namespace moxie
