// SPDX-License-Identifier: Apache-2.0
// A checkpoint's meaning: the shapes and roles of its expert tensors, with every dialect already
// resolved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moxie/checkpoint.hpp"
#include "moxie/json.hpp"
#include "moxie/status.hpp"
#include "moxie/tensors.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Ways to name, type and describe the tensors of experts that can be written.
enum class DialectKind : std::uint8_t {
  deepseek,
  modelopt,
  compressed_tensors,
  quark,
  gpt_oss,
  gguf
};
// "deepseek", "modelopt", "compressed-tensors", "quark", "gpt-oss".
MOXIE_API std::string_view name_of(DialectKind dialect);

// What config.json says about the routed experts, under the field's standard names.
struct ModelConfig {
  std::string model_type;           // of the text model, e.g. "deepseek_v4"
  std::uint64_t hidden = 0;         // width that the routed experts see
  std::uint64_t router_hidden = 0;  // width that the router reads; the model's own, which is
                                    // larger where experts work in a latent space
  std::uint64_t inter = 0;          // expert intermediate size, one of gate and up
  std::uint64_t experts = 0;
  std::uint64_t top_k = 0;
  std::uint64_t num_layers = 0;
  std::vector<int> moe_layers;    // layer indices with routed experts
  std::uint64_t hash_layers = 0;  // first layers routed by token id
  std::uint64_t vocab = 0;
  bool gated = true;  // experts have a gate projection
  Activation activation = Activation::silu;
  std::optional<double> activation_limit;
  RouterKind router = RouterKind::softmax_topk;
  std::optional<double> norm_eps;  // of the router's own normalisation; scaled_softmax alone
  double routed_scaling = 1.0;
  std::uint64_t expert_groups = 1;  // grouped selection: groups of experts, and how many are kept
  std::uint64_t kept_groups = 1;
  bool norm_topk = true;  // the weights of a token's experts are made to sum to 1 (before scaling)
  std::optional<BlockFormat> format;  // of the experts, as the config declares it
  std::string quantization;   // the declared method, for messages: "fp8 + expert_dtype fp4",
                              // "modelopt NVFP4", …
  bool input_scales = false;  // the declared method stores an activation scale per projection
  bool biases = false;        // experts have a bias per projection
  // The rest of the model; of DeepSeek-V4 alone, when the config gives all its sizes.
  std::optional<V4Config> v4{};
};

// How the bytes of a stored row become canonical ones: packed pairs with the even element in the
// low nibble, one byte per scale, f32 for biases.
enum class RowPacking : std::uint8_t {
  plain,         // as they are stored
  bf16,          // bf16, canonically f32
  mxfp4_codes,   // of GGUF's blocks: a scale and 16 bytes of codes for 32 elements
  mxfp4_scales,  // of the same blocks
  nvfp4_codes,   // of GGUF's super-blocks: 4 scales and 32 bytes of codes for 64 elements
  nvfp4_scales,  // of the same super-blocks
  // UE4M3 scales of 16, canonically E8M0 of 32: two equal powers of two become one, others NaN.
  nvfp4_pairs,
  nvfp4_scale_pairs  // the same of GGUF's super-blocks
};

// Rows inside a stored tensor: row r starts at byte `offset + r * row_stride` of the tensor. Empty
// when the checkpoint has no such tensor.
struct RowsView {
  const TensorInfo* tensor = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t rows = 0;
  std::uint64_t row_bytes = 0;  // canonical
  std::uint64_t row_stride = 0;
  RowPacking packing = RowPacking::plain;

  [[nodiscard]] bool present() const { return tensor != nullptr; }
};

// Canonical bytes [first_byte, first_byte + out.size()) of a row.
MOXIE_API void read_row(const Checkpoint& checkpoint, const RowsView& view, std::uint64_t row,
                        std::uint64_t first_byte, std::span<std::byte> out);
// The same of a row whose stored bytes, `view.row_stride` of them, lie elsewhere.
MOXIE_API void read_row(const std::byte* stored, const RowsView& view, std::uint64_t first_byte,
                        std::span<std::byte> out);

// A stored f32 scalar: element `index` of a tensor. Some dialects store the reciprocal of what
// multiplies, some leave out what would be 1.
struct ScalarRef {
  const TensorInfo* tensor = nullptr;
  std::uint64_t index = 0;
  bool reciprocal = false;
  bool one = false;  // nothing is stored and 1 is meant

  [[nodiscard]] bool present() const { return tensor != nullptr || one; }
  // What a stored value multiplies by, whatever that is: one fp32 rounding at most.
  [[nodiscard]] float multiplier(float stored) const { return reciprocal ? 1.0F / stored : stored; }
};

// One projection of one expert in canonical terms: value = E2M1(code) * scale(group) * dequant_mul.
struct Projection {
  RowsView codes;             // [n, k/2] packed pairs, even element in the low nibble
  RowsView block_scales;      // [n, k/group]
  ScalarRef dequant_mul;      // absent for MXFP4, which is not zero
  ScalarRef act_dequant_mul;  // for activations
  RowsView bias;              // f32 [n], a row of one value each
};

// The router of a layer: logits = weight · x. Which of the others a layer has depends on the model.
struct RouterTensors {
  const TensorInfo* weight = nullptr;  // bf16 or f32 [experts, router_hidden]
  // [experts]: f32, correction for the selection only; with topk_softmax bf16 or f32, added to the
  // logits.
  const TensorInfo* bias = nullptr;
  const TensorInfo* token_table = nullptr;   // i64 [vocab, top_k], expert ids by token id
  const TensorInfo* input_scale = nullptr;   // bf16 or f32 [router_hidden], by channel
  const TensorInfo* expert_scale = nullptr;  // bf16 or f32 [experts], of the final weights
};

enum class ProjectionKind : std::uint8_t { gate, up, down };
MOXIE_API std::string_view name_of(ProjectionKind kind);

// Gate and up are [inter, hidden], down is [hidden, inter]. Gate is empty for non-gated models.
struct ExpertTensors {
  Projection gate;
  Projection up;
  Projection down;

  [[nodiscard]] const Projection& operator[](ProjectionKind kind) const {
    return kind == ProjectionKind::gate ? gate : kind == ProjectionKind::up ? up : down;
  }
  [[nodiscard]] Projection& operator[](ProjectionKind kind) {
    return kind == ProjectionKind::gate ? gate : kind == ProjectionKind::up ? up : down;
  }
};

// The projections that a model's experts have, in canonical order.
MOXIE_API std::vector<ProjectionKind> projections_of(const ModelConfig& config);

// Stored bytes of one expert: codes, scales, bf16 biases where it has them, and for NVFP4 the f32
// scalars of each projection: the global, and the activation scale where the config declares one.
MOXIE_API std::uint64_t expert_bytes(const ModelConfig& config, BlockFormat format);

// The routed experts of one layer. `layer` counts multi-token-prediction blocks after the last main
// layer.
struct LayerExperts {
  int layer = 0;
  std::string prefix;        // "layers.3.ffn.experts"
  bool mtp = false;          // belongs to a multi-token-prediction block
  bool recast = false;       // NVFP4 whose scales are read as MXFP4's; globals stay
  bool stacked = false;      // one tensor holds a projection of all experts, or two
  std::string_view dialect;  // "deepseek-v4", "modelopt", … as docs/formats.md lists them
  BlockFormat format = BlockFormat::mxfp4;
  std::vector<ExpertTensors> experts;  // by global expert id
  RouterTensors router;                // what is there of it; only running with it needs it
  std::vector<Finding> problems;       // what stops this layer from being read; empty when complete
};

// How experts are stored that are not FP4.
enum class DenseFormat : std::uint8_t { bf16, f16, f32, fp8_block };
// "bf16", "f16", "f32", "fp8-block".
MOXIE_API std::string_view name_of(DenseFormat format);

// A matrix inside a stored tensor: element (r, c) is the tensor's element first + r * row_step +
// c * col_step, times the scale of its tile where there are scales.
struct DenseMatrix {
  const TensorInfo* weight = nullptr;
  std::uint64_t rows = 0;
  std::uint64_t cols = 0;
  std::uint64_t first = 0;
  std::uint64_t row_step = 0;
  std::uint64_t col_step = 1;
  const TensorInfo* scales = nullptr;  // [row tiles, column tiles], multipliers
  std::uint64_t tile_rows = 0;
  std::uint64_t tile_cols = 0;
};

// The routed experts of one main layer that are stored without FP4.
struct DenseExperts {
  int layer = 0;
  std::string prefix;  // "model.layers.3.mlp.experts"
  DenseFormat format = DenseFormat::bf16;
  bool stacked = false;                             // one tensor holds all experts
  std::array<std::string_view, 3> projections;      // names, by ProjectionKind
  std::vector<std::array<DenseMatrix, 3>> experts;  // by global expert id and ProjectionKind
  std::vector<Finding> problems;                    // empty when complete
};

// What `read_model` returns. Holds the checkpoint, so that tensor references stay valid.
struct MoeModel {
  Checkpoint checkpoint;
  ModelConfig config;
  std::optional<BlockFormat>
      format;           // of the main layers: the tensors' when there are any, else the config's
  std::string dialect;  // of the main layers; empty when there are no tensors
  std::vector<LayerExperts>
      layers;  // layers with at least one expert tensor or expected one, ascending
  std::vector<DenseExperts> dense;  // of main layers, where no layer is in an FP4 format
  std::vector<Finding> findings;    // config against tensors
  bool recast = false;              // the main layers are
  // Main layers with experts in FP4, where lists or tensors leave some out; else all are.
  std::optional<std::uint64_t> fp4_layers{};

  [[nodiscard]] std::uint64_t planned_layers() const {
    return fp4_layers.value_or(config.moe_layers.size());
  }

  // The layer, complete. Errors: Error(input) with the layer's problems, or MOXIE-M011 when there
  // is no such layer.
  [[nodiscard]] const LayerExperts& require_layer(int layer) const;
};

// Reads what a config says. Errors: Error(input) MOXIE-M001 for an unknown family or an absent or
// wrong field.
MOXIE_API ModelConfig read_config(const Json& config, const Json& quant_config);

// Resolves names and dialect. Headers only. Problems of single layers are recorded there;
// Error(input) when the config is unusable or no dialect matches the expert tensors.
MOXIE_API MoeModel read_model(const Checkpoint& checkpoint);

// NVFP4 experts as MXFP4 with globals, bit-identical in value: codes and globals stay, a pair of
// block scales becomes one. Where a pair is no equal powers of two, the scale reads as NaN. The
// layer must be NVFP4.
MOXIE_API LayerExperts recast_layer(LayerExperts layer);
// The same for the main layers and what the model says of them.
MOXIE_API MoeModel recast_model(MoeModel model);

// The multiplier that a stored f32 scalar stands for. Error(input) MOXIE-M007 unless both are
// finite and greater than zero, MOXIE-M006 when the checkpoint has none.
MOXIE_API float read_scalar(const Checkpoint& checkpoint, const ScalarRef& scalar);

// The stored f32 itself, whatever it is; 1 where 1 is meant. The scalar must be present.
MOXIE_API float stored_scalar(const Checkpoint& checkpoint, const ScalarRef& scalar);

}  // namespace moxie
