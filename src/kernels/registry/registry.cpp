// SPDX-License-Identifier: Apache-2.0
// The names of the catalog with code behind them.
#include "kernels/registry/registry.hpp"

#include "kernels/cpu/avx2/kernels.hpp"
#include "kernels/cpu/avx512/kernels.hpp"
#include "kernels/cpu/portable/experts.hpp"
#include "kernels/cpu/portable/route.hpp"
#include "kernels/cpu/portable/rows.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "kernels/cuda/sm90/kernels.hpp"

namespace moxie {

const ExpertsKernel* find_experts_kernel(std::string_view name) {
  if (name == "cpu.avx512.experts.bf16") return cpu::avx512::experts_bf16();
  if (name == "cpu.avx512.experts.int8") return cpu::avx512::experts_int8();
  if (name == "cpu.avx2.experts.f32") return cpu::avx2::experts_f32();
  if (name == "cpu.avx2.experts.int8") return cpu::avx2::experts_int8();
  if (name == "cpu.portable.experts") return &cpu::portable::kExperts;
  if (name == "cuda.sm90.experts.fp8") return cuda::sm90::experts_fp8();
  if (name == "cuda.sm90.experts.fp16") return cuda::sm90::experts_fp16();
  if (name == "cuda.portable.experts") return cuda::portable::experts_kernel();
  return nullptr;
}

const RouteKernel* find_route_kernel(std::string_view name) {
  if (name == "cpu.portable.route") return &cpu::portable::kRoute;
  if (name == "cuda.portable.route") return cuda::portable::route_kernel();
  return nullptr;
}

const RowsKernel* find_rows_kernel(Target target) {
  return target == Target::cpu ? &cpu::portable::kRows : cuda::portable::rows_kernel();
}

const PartialsKernel* find_partials_kernel(Target target) {
  return target == Target::cpu ? nullptr : cuda::portable::partials_kernel();
}

}  // namespace moxie
