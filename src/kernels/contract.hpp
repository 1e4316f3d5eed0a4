// SPDX-License-Identifier: Apache-2.0
// What a backend implements: the experts of one rank from x, ids and weights to y; and routing.
//
// Every pointer of a call is memory of the machine that the kernel runs on: the host's for a CPU,
// device memory for a GPU, where `stats` and `flags` are device memory too, `threads` and `trace`
// mean nothing, elements of x and of a router's weight lie at multiples of their size, and a call
// returns before its work is done.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_device.hpp"
#include "moxie/execution.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Where the tensors of one expert lie inside its blob, in bytes; kAbsent for those it does not
// have: the gate of functions without one, globals (f32) of MXFP4, biases (f32) of most models.
struct BlobOffsets {
  static constexpr std::uint64_t kAbsent = ~std::uint64_t{0};
  std::uint64_t gate = 0;        // codes [inter, hidden/2]
  std::uint64_t up = 0;          // codes [inter, hidden/2]
  std::uint64_t down = 0;        // codes [hidden, inter/2]
  std::uint64_t gate_scale = 0;  // [inter, hidden/group]
  std::uint64_t up_scale = 0;    // [inter, hidden/group]
  std::uint64_t down_scale = 0;  // [hidden, inter/group]
  std::uint64_t gate_mul = kAbsent;
  std::uint64_t up_mul = kAbsent;
  std::uint64_t down_mul = kAbsent;
  std::uint64_t gate_act_mul = kAbsent;  // input scales (f32): absent unless they are consumed
  std::uint64_t up_act_mul = kAbsent;
  std::uint64_t down_act_mul = kAbsent;
  std::uint64_t gate_bias = kAbsent;  // [inter]
  std::uint64_t up_bias = kAbsent;    // [inter]
  std::uint64_t down_bias = kAbsent;  // [hidden]; not zero on one rank of a tp group alone
};

// What is fixed when a layer is bound; the workspace size follows from it and the tokens alone.
struct ExpertsShape {
  BlockFormat format = BlockFormat::mxfp4;
  ActFormat act_format = ActFormat::bf16;
  ActScale act_scale = ActScale::checkpoint;  // of nvfp4
  Activation activation = Activation::silu;
  float activation_limit = 0;  // consumed by the activation functions that clamp
  std::uint64_t hidden = 0;
  std::uint64_t inter = 0;          // the rank's kernel width
  std::uint64_t experts = 0;        // of the model
  std::uint64_t local_experts = 0;  // of this rank
  std::uint64_t top_k = 0;
};

struct ExpertsWeights {
  const std::byte* blobs = nullptr;  // local expert l starts at blobs + l * stride; any alignment
  std::uint64_t stride = 0;
  BlobOffsets offsets;
  // [experts]; -1: another rank's. Written when the layer is made: kernels may read it while those
  // in front of them still run.
  const std::int32_t* local_of_expert = nullptr;
};

struct ExpertsArgs {
  ExpertsShape shape;
  ExpertsWeights weights;
  std::uint64_t tokens = 0;
  MatrixRef x;                             // [tokens, hidden] bf16 or f32
  const std::int32_t* topk_ids = nullptr;  // [tokens, top_k] global
  const float* topk_weights = nullptr;     // [tokens, top_k]
  float* y = nullptr;                      // [tokens, hidden] dense; this rank's partial sum
  MutableMatrixRef final_y{};              // bf16 or f32; not null: written in place of y
  // [slots, inter] where the values that enter the down product are copied, by slot; rows of slots
  // that are not computed are left alone. Null: nobody looks.
  float* act_tap = nullptr;
  // nvfp4 alone. Of no use (see is_act_scale): the fallback takes their place, which is counted.
  float x_scale = 0;               // policy warmup: of x
  float act_scale = 0;             // policy warmup: of the values that enter the down product
  float act_margin = 1;            // policy dynamic: the amax counts so many times
  ActStats* stats = nullptr;       // counts are added; null: nobody looks
  std::byte* workspace = nullptr;  // workspace_bytes(shape, tokens), any content and alignment
  std::uint32_t* flags = nullptr;
  unsigned threads = 1;
  unsigned max_sms = 0;         // GPUs: multiprocessors that the call may fill; 0: all
  Trace* trace = nullptr;       // stage times are added; may be null
  void* stream = nullptr;       // GPUs: the cudaStream_t whose order the work keeps
  int* launch_error = nullptr;  // GPUs: host memory; the code of a launch that failed is put here
};

// Rows that somebody else has dispatched become the choices of an ExpertsArgs with one choice each
// among a rank's own experts, and FP8 rows become its x. What is written lies in the workspace of
// the call.
struct ExpertRowsArgs {
  std::uint64_t rows = 0;
  std::uint64_t local_experts = 0;
  const std::int32_t* rows_of_expert = nullptr;  // [local_experts]
  std::uint64_t rows_apart = 0;                  // from expert to expert; 0: one after another
  const float* row_scales = nullptr;             // [rows]; null: 1
  MatrixRef codes;                               // [rows, hidden] f8_e4m3; data null: x is no FP8
  RowBlockScales code_scales;                    // of the codes
  std::int32_t* ids = nullptr;                   // [rows] local experts; -1: the row is nobody's
  float* weights = nullptr;                      // [rows]
  // [rows, hidden] f32 or bf16, dense, aligned to 16 bytes: of the codes; nobody's rows stay.
  MutableMatrixRef x;
  std::uint32_t* flags = nullptr;
  unsigned max_sms = 0;         // as in ExpertsArgs
  void* stream = nullptr;       // as in ExpertsArgs
  int* launch_error = nullptr;  // as in ExpertsArgs
  unsigned threads = 1;
};

// Where the scale of a row's first columns lies among code_scales.
MOXIE_HD constexpr std::uint64_t first_code_scale(const ExpertRowsArgs& args, std::uint64_t row) {
  const RowBlockScales& scales = args.code_scales;
  if (args.rows_apart == 0 || scales.expert_stride == 0) return row * scales.row_stride;
  const std::uint64_t expert = row / args.rows_apart;
  return expert * scales.expert_stride + (row - expert * args.rows_apart) * scales.row_stride;
}

struct RowsKernel {
  void (*run)(const ExpertRowsArgs& args) = nullptr;
  int (*prepare)() = nullptr;  // as in ExpertsKernel
};

// One expert between its packed blob and the form in which a kernel reads it, both in device
// memory. The work is put into the stream; the answer is the runtime's code of a launch that
// failed, or 0.
struct ArrangeArgs {
  ExpertsShape shape;
  BlobOffsets offsets;
  std::byte* packed = nullptr;        // any alignment; restore writes it
  std::byte* arranged = nullptr;      // [stride], aligned to 16 bytes; arrange writes it
  std::uint32_t* problems = nullptr;  // one word; arrange sets it where the kernel can not hold a
                                      // value, and leaves it alone else
  void* stream = nullptr;
};
struct ExpertArrangement {
  std::uint64_t (*stride)(const ExpertsShape& shape, const BlobOffsets& offsets) = nullptr;
  int (*arrange)(const ArrangeArgs& args) = nullptr;
  int (*restore)(const ArrangeArgs& args) = nullptr;
};

// One entry of the registry. No function allocates, locks or throws.
struct ExpertsKernel {
  void (*run)(const ExpertsArgs& args) = nullptr;
  std::uint64_t (*workspace_bytes)(const ExpertsShape& shape, std::uint64_t tokens) = nullptr;
  bool (*supports)(Activation activation) = nullptr;
  // Loads the code, so that no call has to: a first call may be captured. Returns the runtime's
  // code of what failed, 0 when all is well. Null: nothing to load.
  int (*prepare)() = nullptr;
  // The form in which it reads experts, which lie `stride` of it apart. Null: as they are packed.
  const ExpertArrangement* arrangement = nullptr;
  bool stores_y = false;  // takes ExpertsArgs::final_y
};

// The record of a router: kind and constants, and its tensors in memory.
struct RouterShape {
  RouterKind kind = RouterKind::sqrt_softplus;
  std::uint64_t hidden = 0;
  std::uint64_t experts = 0;
  std::uint64_t top_k = 0;
  std::uint64_t vocab = 0;          // rows of the token table
  std::uint64_t expert_groups = 1;  // 1: no grouped selection
  std::uint64_t kept_groups = 1;
  bool norm_topk = true;
  float routed_scaling = 1;
  float norm_eps = 0;  // scaled_softmax: x counts over the root of its mean square plus this
};

struct RouteArgs {
  RouterShape shape;
  MatrixRef weight;  // [experts, hidden] bf16 or f32
  // [experts]; null: none. Of the logits for a softmax, else a correction of the selection alone.
  const float* bias = nullptr;
  const float* expert_scale = nullptr;        // [experts], of the final weights; null: none
  const std::int32_t* token_table = nullptr;  // [vocab, top_k]; null: selection by score
  std::uint64_t tokens = 0;
  MatrixRef x;                              // [tokens, hidden] bf16 or f32
  const std::int64_t* token_ids = nullptr;  // [tokens]; null without a table: no token is masked
  std::int32_t* topk_ids = nullptr;         // [tokens, top_k]
  float* topk_weights = nullptr;            // [tokens, top_k]
  std::byte* workspace = nullptr;           // workspace_bytes(shape, tokens), any alignment
  std::uint32_t* flags = nullptr;
  unsigned threads = 1;
  void* stream = nullptr;       // as in ExpertsArgs
  int* launch_error = nullptr;  // as in ExpertsArgs
};

struct RouteKernel {
  void (*run)(const RouteArgs& args) = nullptr;
  std::uint64_t (*workspace_bytes)(const RouterShape& shape, std::uint64_t tokens) = nullptr;
  bool (*supports)(RouterKind kind) = nullptr;
};

// What a layer does to the partial sums of its ranks where they are not in the host's memory. All
// sums are [tokens, hidden] f32, dense.
struct PartialsArgs {
  float* sum = nullptr;
  const float* partial = nullptr;  // of add()
  MutableMatrixRef y;              // of store(): bf16 or f32 [tokens, hidden]
  std::uint64_t tokens = 0;
  std::uint64_t hidden = 0;
  void* stream = nullptr;
  int* launch_error = nullptr;
};

struct PartialsKernel {
  void (*add)(const PartialsArgs& args) = nullptr;    // sum += partial
  void (*store)(const PartialsArgs& args) = nullptr;  // y = sum, rounded to nearest even
};

}  // namespace moxie
