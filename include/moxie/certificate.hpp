// SPDX-License-Identifier: Apache-2.0
// What a checkpoint's scales say about exactness: whether FP4 weights fit FP8 or FP16 numbers under
// a common factor, and whether NVFP4 experts are MXFP4 in other words.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/json.hpp"
#include "moxie/model.hpp"
#include "moxie/quantize.hpp"
#include "moxie/status.hpp"
#include "moxie/types.hpp"

namespace moxie {

inline constexpr std::size_t kGranules = 3;  // row, block, whole

// Scale groups outside the exact windows: [granule][window].
using WindowCounts = std::array<std::array<std::uint64_t, kExactWindows>, kGranules>;

// One projection of one expert that is not exact under every granule and window.
struct TensorLosses {
  std::uint64_t expert = 0;
  ProjectionKind projection = ProjectionKind::gate;
  WindowCounts outside{};
};

// The group that is furthest outside a window in a layer; distance 0: none is outside.
struct WorstGroup {
  std::uint64_t expert = 0;
  ProjectionKind projection = ProjectionKind::gate;
  std::uint64_t row = 0;
  std::uint64_t group = 0;  // of 32 elements
  int distance = 0;         // exponents by which the window would have to be wider
};

// One layer's experts. Windows are of MXFP4 scales; of NVFP4 experts those count that are casts of
// MXFP4.
struct LayerCertificate {
  int layer = 0;
  BlockFormat format = BlockFormat::mxfp4;
  std::uint64_t experts = 0;
  std::uint64_t groups = 0;       // of 32 elements, judged below; without those of scale byte 0x00
  std::uint64_t zero_groups = 0;  // of scale byte 0x00: zeros by convention, 2^-127 to a decoder
  WindowCounts outside{};
  std::array<std::array<WorstGroup, kExactWindows>, kGranules> worst{};
  std::vector<TensorLosses> tensors;     // by expert and projection
  std::vector<std::uint64_t> not_casts;  // NVFP4 experts with a scale that no MXFP4 scale is
  std::uint64_t blocks = 0;              // NVFP4 block scales
  std::uint64_t blocks_not_closed = 0;   // whose products with codes are no E4M3 numbers
  std::string scales_checksum;           // xxh3_128 of the scales, expert by expert

  // The coarsest granule under which no group is outside; nullopt when there is none, or an expert
  // is no cast.
  [[nodiscard]] MOXIE_API std::optional<Granule> granule_for(ExactWindow window) const;
  [[nodiscard]] bool is_cast() const { return format == BlockFormat::nvfp4 && not_casts.empty(); }
};

struct Certificate {
  std::string model;  // model_type
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;
  std::uint64_t experts = 0;
  std::uint64_t moe_layers = 0;  // main layers with experts, certified or not
  std::vector<LayerCertificate> layers;
};

struct CertifyOptions {
  std::vector<int> layers{};  // empty: all complete main layers
  Progress progress{};        // experts done
};

// Reads block scales, and nothing else of the tensors. Errors: Error(input) MOXIE-K003 for a scale
// that is no number, the layer's problems, MOXIE-M011 for a layer that is not there.
MOXIE_API Certificate certify(const MoeModel& model, const CertifyOptions& options = {});

// The document of `moxie doctor --certificate` (schema moxie.certificate/1) and back.
// Error(input) MOXIE-D001 when a field is absent or of another kind.
MOXIE_API Json to_json(const Certificate& certificate);
MOXIE_API Certificate certificate_from_json(const Json& document, std::string_view origin);

// The file of such a document. Writing replaces an older one; reading: Error(input) MOXIE-D001.
MOXIE_API void write_certificate(const std::filesystem::path& path, const Certificate& certificate);
MOXIE_API Certificate read_certificate(const std::filesystem::path& path);

// Why the experts of `model` can not be packed as MXFP4 with globals; empty when they can: the
// certificate is of this model and covers all its main layers, and every expert is a cast.
MOXIE_API std::string recast_refusal(const Certificate& certificate, const MoeModel& model);

// Errors: Error(unsupported) MOXIE-P013 when the certificate is of another model.
MOXIE_API void require_certificate_of(const Certificate& certificate, const MoeModel& model);

}  // namespace moxie
