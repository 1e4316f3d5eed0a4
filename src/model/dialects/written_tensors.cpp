// SPDX-License-Identifier: Apache-2.0
// Names, types and shapes as DeepSeek, NVIDIA's re-quantisation, ModelOpt, compressed-tensors and
// Quark publish them.
#include "model/dialects/written_tensors.hpp"

#include <utility>

#include "base/checked.hpp"
#include "formats/block_format.hpp"

namespace moxie {

namespace {

constexpr BlockNames kDeepseek{"layers.", ".ffn.", {"w1", "w3", "w2"}, "bias"};
constexpr BlockNames kOthers{
    "model.layers.", ".mlp.", {"gate_proj", "up_proj", "down_proj"}, "e_score_correction_bias"};

}  // namespace

std::string_view name_of(DialectKind dialect) {
  switch (dialect) {
    case DialectKind::deepseek:
      return "deepseek";
    case DialectKind::modelopt:
      return "modelopt";
    case DialectKind::compressed_tensors:
      return "compressed-tensors";
    case DialectKind::quark:
      return "quark";
    case DialectKind::gpt_oss:
      return "gpt-oss";
    case DialectKind::gguf:
      return "gguf";
  }
  return "unknown";
}

const BlockNames& block_names(DialectKind dialect) {
  return dialect == DialectKind::deepseek ? kDeepseek : kOthers;
}

bool is_stacked(DialectKind dialect) {
  return dialect == DialectKind::gpt_oss || dialect == DialectKind::gguf;
}

std::vector<WrittenTensor> written_projection(DialectKind dialect, BlockFormat format,
                                              const std::string& stem, std::uint64_t rows,
                                              std::uint64_t cols, bool input_scale) {
  MOXIE_CHECK(!is_stacked(dialect), "a stacked dialect has no tensors of one expert");
  const bool is_mxfp4 = format == BlockFormat::mxfp4;
  const bool native = is_mxfp4 && dialect == DialectKind::deepseek;
  const bool inverse = dialect == DialectKind::compressed_tensors;
  std::vector<WrittenTensor> tensors;
  const auto add = [&](std::string_view part_name, DType dtype, Shape shape, WrittenPart part) {
    tensors.push_back({part, {stem + "." + std::string(part_name), dtype, std::move(shape)}});
  };
  add(inverse ? "weight_packed" : "weight", native ? DType::i8 : DType::u8,
      {rows, to_packed_bytes(Elems{cols}).value}, WrittenPart::codes);
  add(native ? "scale" : "weight_scale",
      native     ? DType::f8_e8m0
      : is_mxfp4 ? DType::u8
                 : DType::f8_e4m3,
      {rows, to_scale_groups(Elems{cols}, format).value}, WrittenPart::block_scales);
  if (is_mxfp4) return tensors;
  const Shape one = inverse ? Shape{1} : Shape{};
  add(inverse ? "weight_global_scale" : "weight_scale_2", DType::f32, one,
      WrittenPart::weight_global);
  if (input_scale) {
    add(inverse ? "input_global_scale" : "input_scale", DType::f32, one, WrittenPart::input_global);
  }
  return tensors;
}

}  // namespace moxie
