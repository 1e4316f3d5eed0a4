// SPDX-License-Identifier: Apache-2.0
// Names of the public enumerations.
#include "moxie/types.hpp"

#include <string>

namespace moxie {

std::string_view name_of(BlockFormat format) {
  return format == BlockFormat::mxfp4 ? "mxfp4" : "nvfp4";
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "BOOL";
    case DType::u8:
      return "U8";
    case DType::i8:
      return "I8";
    case DType::u16:
      return "U16";
    case DType::i16:
      return "I16";
    case DType::u32:
      return "U32";
    case DType::i32:
      return "I32";
    case DType::u64:
      return "U64";
    case DType::i64:
      return "I64";
    case DType::f64:
      return "F64";
    case DType::f32:
      return "F32";
    case DType::f16:
      return "F16";
    case DType::bf16:
      return "BF16";
    case DType::f8_e4m3:
      return "F8_E4M3";
    case DType::f8_e5m2:
      return "F8_E5M2";
    case DType::f8_e8m0:
      return "F8_E8M0";
    case DType::f8_e4m3fnuz:
      return "F8_E4M3FNUZ";
    case DType::f8_e5m2fnuz:
      return "F8_E5M2FNUZ";
    case DType::f4:
      return "F4";
    case DType::f6_e2m3:
      return "F6_E2M3";
    case DType::f6_e3m2:
      return "F6_E3M2";
    case DType::c64:
      return "C64";
    case DType::mxfp4_blocks:
      return "MXFP4";
    case DType::nvfp4_blocks:
      return "NVFP4";
    case DType::other_blocks:
      return "other blocks";
  }
  return "?";
}

unsigned bits_of(DType dtype) {
  switch (dtype) {
    case DType::f4:
      return 4;
    case DType::f6_e2m3:
    case DType::f6_e3m2:
      return 6;
    case DType::boolean:
    case DType::u8:
    case DType::i8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
      return 8;
    case DType::u16:
    case DType::i16:
    case DType::f16:
    case DType::bf16:
      return 16;
    case DType::u32:
    case DType::i32:
    case DType::f32:
      return 32;
    case DType::u64:
    case DType::i64:
    case DType::f64:
    case DType::c64:
      return 64;
    case DType::mxfp4_blocks:
    case DType::nvfp4_blocks:
    case DType::other_blocks:
      return 0;
  }
  return 0;
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

std::string_view name_of(Target target) {
  switch (target) {
    case Target::cpu:
      return "cpu";
    case Target::sm90:
      return "sm90";
    case Target::sm100:
      return "sm100";
    case Target::sm120:
      return "sm120";
  }
  return "?";
}

std::string_view name_of(Activation activation) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::clamped_swiglu:
      return "clamped_swiglu";
    case Activation::oai_swiglu:
      return "oai_swiglu";
    case Activation::situ:
      return "situ";
    case Activation::relu2:
      return "relu2";
    case Activation::gelu_tanh:
      return "gelu_tanh";
  }
  return "?";
}

bool has_gate(Activation activation) { return activation != Activation::relu2; }

bool has_limit(Activation activation) {
  return activation == Activation::clamped_swiglu || activation == Activation::oai_swiglu;
}

std::string_view name_of(RouterKind router) {
  switch (router) {
    case RouterKind::sqrt_softplus:
      return "sqrt_softplus";
    case RouterKind::sigmoid:
      return "sigmoid";
    case RouterKind::softmax_topk:
      return "softmax_topk";
    case RouterKind::topk_softmax:
      return "topk_softmax";
    case RouterKind::scaled_softmax:
      return "scaled_softmax";
  }
  return "?";
}

std::string_view name_of(ActFormat act_format) {
  switch (act_format) {
    case ActFormat::bf16:
      return "bf16";
    case ActFormat::fp8:
      return "fp8";
    case ActFormat::fp8x2:
      return "fp8x2";
    case ActFormat::mxfp8:
      return "mxfp8";
    case ActFormat::nvfp4:
      return "nvfp4";
    case ActFormat::int8:
      return "int8";
    case ActFormat::int8x2:
      return "int8x2";
  }
  return "?";
}

std::string_view name_of(ActScale act_scale) {
  switch (act_scale) {
    case ActScale::checkpoint:
      return "checkpoint";
    case ActScale::warmup:
      return "warmup";
    case ActScale::dynamic:
      return "dynamic";
    case ActScale::row:
      return "row";
  }
  return "?";
}

}  // namespace moxie
