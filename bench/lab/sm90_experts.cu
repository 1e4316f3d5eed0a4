// SPDX-License-Identifier: Apache-2.0
// Lab for cuda.sm90.experts.fp16: checks it against cuda.portable.experts on random experts, then
// times graphs of several routing sets whose weights come from memory, next to a pure read of the
// bytes that the sets touch.
//
//   moxie_lab_sm90 [flash|tp3|pro|oss] [mxfp4|nvfp4] [tokens...]
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/checked.hpp"
#include "kernels/cuda/portable/kernels.hpp"
#include "kernels/cuda/sm90/kernels.hpp"

namespace {

using namespace moxie;  // NOLINT: a lab

void ok(cudaError_t code, int line) {
  if (code == cudaSuccess) return;
  std::printf("line %d: %s\n", line, cudaGetErrorString(code));
  std::exit(1);
}
#define OK(call) ok((call), __LINE__)

template <class T>
T* device(std::size_t count) {
  T* data = nullptr;
  OK(cudaMalloc(&data, count * sizeof(T)));
  OK(cudaMemset(data, 0xFF, count * sizeof(T)));
  return data;
}

__device__ std::uint64_t mix(std::uint64_t z) {
  z += 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

struct Layout {
  BlobOffsets offsets;
  std::uint64_t scales = 0;  // first byte of the scales
  std::uint64_t floats = 0;  // first byte of scalars and biases
  std::uint64_t stride = 0;
};

__global__ void fill(std::byte* blobs, std::uint64_t experts, Layout layout, bool mx, bool oss,
                     std::uint64_t seed) {
  const std::uint64_t words = layout.stride / 4;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x; i < experts * words;
       i += std::uint64_t{gridDim.x} * blockDim.x) {
    const std::uint64_t at = i % words * 4;
    const std::uint64_t z = mix(i ^ seed);
    auto value = static_cast<std::uint32_t>(z);
    if (at >= layout.floats) {
      const bool is_mul = !mx && at < layout.floats + 12;
      value = __float_as_uint(is_mul ? 0.0005F + 0.001F * (z & 255) / 255
                                     : (float(z & 1023) / 512 - 1) * (oss ? 0.5F : 0.0F));
    } else if (at >= layout.scales) {
      value = 0;
      for (int b = 0; b < 4; ++b) {
        const auto r = static_cast<std::uint32_t>(z >> (16 * b)) & 0xFFFF;
        value |= (mx ? 117 + r % 4 : 40 + r % 60) << (8 * b);
      }
    }
    reinterpret_cast<std::uint32_t*>(blobs)[i] = value;
  }
}

template <int kUnroll>
__global__ void read_all(const uint4* from, std::uint64_t count, std::uint32_t* to) {
  std::uint32_t all = 0;
  for (std::uint64_t i = blockIdx.x * std::uint64_t{blockDim.x} * kUnroll + threadIdx.x; i < count;
       i += std::uint64_t{gridDim.x} * blockDim.x * kUnroll) {
    uint4 v[kUnroll] = {};
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      if (i + j * blockDim.x < count) v[j] = __ldcs(from + i + j * blockDim.x);
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) all ^= v[j].x ^ v[j].y ^ v[j].z ^ v[j].w;
  }
  if (all == 0x12345678U) *to = all;
}

struct Problem {
  std::string name;
  std::uint64_t hidden, inter, experts, local, top_k;
  Activation activation = Activation::clamped_swiglu;
  float limit = 10;
  bool bias = false;
};

struct Set {
  std::int32_t* ids;
  float* weights;
  std::uint16_t* x;
  std::uint16_t* y;
  std::uint64_t touched = 0;
};

double time_us(cudaStream_t stream, int sets, double guess_us, const auto& launch) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int i = 0; i < sets; ++i) launch(i);
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b;
  OK(cudaEventCreate(&a));
  OK(cudaEventCreate(&b));
  std::vector<float> times;
  const int runs = std::max(12, static_cast<int>(30000 / (sets * guess_us)));
  for (int i = 0; i < runs + 3; ++i) {
    OK(cudaEventRecord(a, stream));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaEventRecord(b, stream));
    OK(cudaEventSynchronize(b));
    float ms = 0;
    OK(cudaEventElapsedTime(&ms, a, b));
    if (i >= 3) times.push_back(ms * 1000 / static_cast<float>(sets));
  }
  std::sort(times.begin(), times.end());
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(graph));
  return times[times.size() / 2];
}

float bf16(std::uint16_t v) {
  const std::uint32_t bits = std::uint32_t{v} << 16;
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string which = argc > 1 ? argv[1] : "flash";
  const bool mx = argc <= 2 || std::string(argv[2]) == "mxfp4";
  std::vector<std::uint64_t> tokens;
  for (int i = 3; i < argc; ++i) tokens.push_back(std::strtoull(argv[i], nullptr, 10));
  if (tokens.empty()) tokens = {1, 2, 8, 64, 256, 512};
  Problem p{"flash", 4096, 2048, 256, 256, 6};
  if (which == "tp3") p = {"tp3", 4096, 704, 256, 256, 6};
  if (which == "pro") p = {"pro", 7168, 3072, 384, 48, 6};
  if (which == "oss") p = {"oss", 2880, 2880, 128, 128, 4, Activation::oai_swiglu, 7, true};
  const bool quick = std::getenv("LAB_QUICK") != nullptr;  // few experts: for the sanitizer
  if (quick) p.experts = p.local = 8, p.hidden = 256 + p.hidden % 128, p.inter = 192;
  int sms = 0;
  OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0));

  const std::uint64_t group = mx ? 32 : 16;
  Layout l;
  const std::uint64_t codes = p.inter * p.hidden / 2;
  l.offsets.gate = 0, l.offsets.up = codes, l.offsets.down = 2 * codes;
  l.scales = 3 * codes;
  const std::uint64_t scales = p.inter * p.hidden / group;
  l.offsets.gate_scale = l.scales, l.offsets.up_scale = l.scales + scales;
  l.offsets.down_scale = l.scales + 2 * scales;
  l.floats = l.scales + 3 * scales;
  std::uint64_t end = l.floats;
  if (!mx) l.offsets.gate_mul = end, l.offsets.up_mul = end + 4, l.offsets.down_mul = end + 8, end += 12;
  if (p.bias) {
    l.offsets.gate_bias = end, l.offsets.up_bias = end + 4 * p.inter;
    l.offsets.down_bias = end + 8 * p.inter, end += 8 * p.inter + 4 * p.hidden;
  }
  l.stride = round_up(end, 64);
  const std::uint64_t weight_bytes = 3 * codes + 3 * scales;

  ExpertsArgs args;
  args.shape = {.format = mx ? BlockFormat::mxfp4 : BlockFormat::nvfp4,
                .activation = p.activation,
                .activation_limit = p.limit,
                .hidden = p.hidden,
                .inter = p.inter,
                .experts = p.experts,
                .local_experts = p.local,
                .top_k = p.top_k};
  if (const char* f = std::getenv("LAB_ACT"))
    args.shape.act_format = std::string(f) == "fp8" ? ActFormat::fp8 : std::string(f) == "mxfp8" ? ActFormat::mxfp8 : ActFormat::bf16;
  auto* blobs = device<std::byte>(p.local * l.stride);
  fill<<<2048, 256>>>(blobs, p.local, l, mx, p.bias, 1234567);
  const ExpertsKernel& ours = *cuda::sm90::experts_kernel();
  const ExpertsKernel& plain = *cuda::portable::experts_kernel();
  OK(static_cast<cudaError_t>(ours.prepare()));
  const std::uint64_t stride = ours.arrangement->stride(args.shape, l.offsets);
  auto* arranged = device<std::byte>(p.local * stride);
  auto* back = device<std::byte>(l.stride);
  auto* problems = device<std::uint32_t>(1);
  OK(cudaMemset(problems, 0, 4));
  for (std::uint64_t e = 0; e < p.local; ++e) {
    ArrangeArgs a{args.shape, l.offsets, blobs + e * l.stride, arranged + e * stride, problems, nullptr};
    OK(static_cast<cudaError_t>(ours.arrangement->arrange(a)));
  }
  OK(cudaMemcpy(back, blobs + l.stride * (p.local - 1), l.stride, cudaMemcpyDeviceToDevice));
  OK(cudaMemset(back, 0xAB, end));
  ArrangeArgs r{args.shape, l.offsets, back, arranged + (p.local - 1) * stride, problems, nullptr};
  OK(static_cast<cudaError_t>(ours.arrangement->restore(r)));
  std::vector<std::byte> h1(l.stride), h2(l.stride);
  OK(cudaMemcpy(h1.data(), back, l.stride, cudaMemcpyDeviceToHost));
  OK(cudaMemcpy(h2.data(), blobs + l.stride * (p.local - 1), l.stride, cudaMemcpyDeviceToHost));
  std::printf("%s %s restore %s\n", p.name.c_str(), mx ? "mxfp4" : "nvfp4", h1 == h2 ? "ok" : "FAIL");

  std::vector<std::int32_t> local(p.experts, -1);
  for (std::uint64_t e = 0; e < p.local; ++e) local[e + (p.experts - p.local) / 2] = static_cast<std::int32_t>(e);
  auto* local_of_expert = device<std::int32_t>(p.experts);
  OK(cudaMemcpy(local_of_expert, local.data(), p.experts * 4, cudaMemcpyHostToDevice));
  args.weights.local_of_expert = local_of_expert;
  args.weights.offsets = l.offsets;
  auto* flags = device<std::uint32_t>(1);
  OK(cudaMemset(flags, 0, 4));
  args.flags = flags;
  int error = 0;
  args.launch_error = &error;
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  args.stream = stream;
  auto* out = device<std::uint32_t>(1);

  const std::uint64_t most = *std::max_element(tokens.begin(), tokens.end());
  const std::uint64_t ws = ours.workspace_bytes(args.shape, most);
  auto* workspace = device<std::byte>(ws);
  auto* plain_ws = device<std::byte>(plain.workspace_bytes(args.shape, std::min<std::uint64_t>(most, 96)));
  auto* y_plain = device<float>(most * p.hidden);
  std::mt19937_64 rng(std::getenv("LAB_SEED") ? std::strtoull(std::getenv("LAB_SEED"), nullptr, 10) : 7);
  std::normal_distribution<float> normal;

  for (const std::uint64_t m : tokens) {
    const int sets = quick ? 1 : m <= 64 ? 8 : m <= 512 ? 4 : 2;
    std::vector<Set> all;
    double touched = 0;
    for (int s = 0; s < sets; ++s) {
      std::vector<std::int32_t> ids, perm(p.experts);
      std::vector<float> w;
      std::set<std::int32_t> used;
      for (std::uint64_t i = 0; i < p.experts; ++i) perm[i] = static_cast<std::int32_t>(i);
      for (std::uint64_t t = 0; t < m; ++t) {
        for (std::uint64_t k = 0; k < p.top_k; ++k) {
          std::swap(perm[k], perm[k + rng() % (p.experts - k)]);
          ids.push_back(perm[k]);
          if (local[perm[k]] >= 0) used.insert(perm[k]);
          w.push_back(0.05F + static_cast<float>(rng() % 1000) * 1e-3F);
        }
      }
      if (p.name == "pro" && used.empty()) ids[0] = 200, used.insert(200);
      std::vector<std::uint16_t> x(m * p.hidden);
      for (auto& v : x) {
        const float f = normal(rng);
        std::uint32_t bits;
        std::memcpy(&bits, &f, 4);
        v = static_cast<std::uint16_t>(bits >> 16);
      }
      Set set{device<std::int32_t>(ids.size()), device<float>(w.size()), device<std::uint16_t>(x.size()),
              device<std::uint16_t>(x.size()), used.size()};
      OK(cudaMemcpy(set.ids, ids.data(), ids.size() * 4, cudaMemcpyHostToDevice));
      OK(cudaMemcpy(set.weights, w.data(), w.size() * 4, cudaMemcpyHostToDevice));
      OK(cudaMemcpy(set.x, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
      touched += static_cast<double>(used.size()) * static_cast<double>(weight_bytes) / sets;
      all.push_back(set);
    }
    const auto with = [&](const Set& set, std::uint64_t count) {
      ExpertsArgs a = args;
      a.tokens = count;
      a.x = {set.x, DType::bf16, count, p.hidden, p.hidden};
      a.topk_ids = set.ids;
      a.topk_weights = set.weights;
      return a;
    };
    const auto run_ours = [&](const Set& set) {
      ExpertsArgs a = with(set, m);
      a.weights.blobs = arranged, a.weights.stride = stride;
      a.workspace = workspace;
      a.final_y = {set.y, DType::bf16, m, p.hidden, p.hidden};
      ours.run(a);
    };
    // Check the first tokens against the plain kernel.
    const std::uint64_t checked = std::min<std::uint64_t>(m, 96);
    ExpertsArgs a = with(all[0], checked);
    a.weights.blobs = blobs, a.weights.stride = l.stride;
    a.workspace = plain_ws, a.y = y_plain;
    plain.run(a);
    OK(cudaMemset(workspace, 0xFF, ws));
    run_ours(all[0]);
    OK(cudaStreamSynchronize(stream));
    if (error != 0) std::printf("launch error %d %s\n", error, cudaGetErrorString(static_cast<cudaError_t>(error)));
    std::vector<float> want(checked * p.hidden);
    std::vector<std::uint16_t> got(m * p.hidden), again(m * p.hidden);
    OK(cudaMemcpy(want.data(), y_plain, want.size() * 4, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(got.data(), all[0].y, got.size() * 2, cudaMemcpyDeviceToHost));
    double d2 = 0, r2 = 0;
    long bad = 0;
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double d = static_cast<double>(bf16(got[i])) - want[i];
      if (!(std::abs(d) < 1e30)) ++bad;
      d2 += d * d, r2 += static_cast<double>(want[i]) * want[i];
    }
    OK(cudaMemset(all[0].y, 0xFF, got.size() * 2));
    run_ours(all[0]);
    OK(cudaStreamSynchronize(stream));
    OK(cudaMemcpy(again.data(), all[0].y, got.size() * 2, cudaMemcpyDeviceToHost));
    std::printf("%s M=%llu error %.2e bad %ld repeat %s", p.name.c_str(), static_cast<unsigned long long>(m),
                std::sqrt(d2 / r2), bad, got == again ? "same" : "DIFFERS");
    std::fflush(stdout);
    if (!quick) {
      const double us = time_us(stream, sets, touched / 4e6, [&](int i) { run_ours(all[static_cast<std::size_t>(i)]); });
      double floor = 1e30;
      const auto bytes = static_cast<std::uint64_t>(touched);
      const std::uint64_t total = p.local * stride;
      for (int c = 0; c < 3; ++c) {
        floor = std::min(floor, time_us(stream, sets, touched / 4e6, [&](int i) {
          const std::uint64_t first = total > bytes ? (static_cast<std::uint64_t>(i) * bytes) % (total - bytes) / 16 : 0;
          const auto* from = reinterpret_cast<const uint4*>(arranged) + first;
          if (c == 0) read_all<4><<<sms, 1024, 0, stream>>>(from, bytes / 16, out);
          if (c == 1) read_all<8><<<2 * sms, 512, 0, stream>>>(from, bytes / 16, out);
          if (c == 2) read_all<4><<<8 * sms, 256, 0, stream>>>(from, bytes / 16, out);
        }));
      }
      std::printf(" | %.1f us, %.1f MB, %.2f TB/s, read %.1f us, ratio %.3f", us, touched / 1048576, touched / us * 1e-6, floor, us / floor);
    }
    std::puts("");
    for (const Set& set : all) {
      for (void* q : {static_cast<void*>(set.ids), static_cast<void*>(set.weights), static_cast<void*>(set.x), static_cast<void*>(set.y)}) OK(cudaFree(q));
    }
  }
  return 0;
}
