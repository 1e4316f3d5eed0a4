// SPDX-License-Identifier: Apache-2.0
// Use: packed experts bound to the planned kernel, and the router in front of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "moxie/execution.hpp"
#include "moxie/model.hpp"
#include "moxie/pack.hpp"
#include "moxie/plan.hpp"
#include "moxie/status.hpp"
#include "moxie/types.hpp"

namespace moxie {

// Who sums the partial results of the ranks. Never both.
enum class Reduction : std::uint8_t {
  layer,  // this object holds every rank of the plan and returns the sum
  caller  // this object holds one rank and returns its partial sum
};

// What a layer needs beside plan and weights; nothing has a default that a model could contradict.
struct LayerSpec {
  std::uint64_t top_k = 0;
  Activation activation = Activation::silu;
  std::optional<double> activation_limit;
  Reduction reduction = Reduction::layer;
  unsigned threads = 0;  // 0: all that the process may use
  unsigned max_sms = 0;  // GPU: multiprocessors that a call may fill; 0: all
};
// With the config's own top_k.
MOXIE_API LayerSpec spec_of(const ModelConfig& config);

// One call's data, all owned by the caller. Inputs are only read. All of it, but for the trace, is
// memory of the plan's target: the host's on the CPU, device memory on a GPU (HostCall copies).
struct LayerIo {
  MatrixRef x;  // [tokens, hidden] bf16 or f32
  // [tokens, top_k] global expert ids; -1 masks a slot. Where experts lie on several ranks, all
  // ranks take the same ids of a token: they say who computes what (ExpertOwners).
  const std::int32_t* topk_ids = nullptr;
  const float* topk_weights = nullptr;  // [tokens, top_k] final router weights
  MutableMatrixRef y;                   // [tokens, hidden] f32 or bf16; every element is written
  std::uint32_t* flags = nullptr;       // one word; see kFlagBadExpertId
  // [ranks held, tokens * top_k, kernel width]: where each rank copies, by slot, the values that
  // enter its down product; slots that it does not compute are left alone. nvfp4: with the global
  // scale, rounded to f32. Null: nobody looks.
  float* act_tap = nullptr;
  Trace* trace = nullptr;         // times are written here unless null; on a GPU they are 0
  ActStats* act_stats = nullptr;  // of nvfp4: counts are written here unless null
};

// A call behind somebody else's dispatch: rows that were brought to one rank, sorted by its experts
// in slot order. Memory as in LayerIo.
struct RowsIo {
  // [rows, hidden] bf16 or f32, or f8_e4m3 with x_scales; rows of no expert may hold anything.
  MatrixRef x;
  // [rows, hidden / 128] of f8_e4m3, rounded up; null with other types. These, row_scales and
  // rows_of_expert are aligned to their elements, as x and y are.
  RowBlockScales x_scales;
  const std::int32_t* rows_of_expert = nullptr;  // [experts of the rank]
  // From one expert's first row to the next one's; 0: an expert's rows begin where those of the
  // expert before end.
  std::uint64_t rows_apart = 0;
  const float* row_scales = nullptr;  // [rows] of the result; null: rows are not weighted
  MutableMatrixRef y;                 // [rows, hidden] f32 or bf16; rows of no expert become 0
  std::uint32_t* flags = nullptr;     // one word; see kFlagBadRowCount
};

// The frozen global scales of nvfp4 activations of one rank, policy warmup.
struct ActScales {
  float x = 0;
  float act = 0;            // of the values that enter the down product
  std::uint64_t slots = 0;  // that the warm-up looked at; 0: both are the fallback 1/2688
  bool guarded = false;     // one is the fallback because what was measured is of no use
};

// Bytes of workspace that a call with up to `tokens` tokens needs. A pure function; grows with
// tokens.
MOXIE_API std::uint64_t workspace_size(const ShardPlan& plan, const LayerSpec& spec,
                                       std::uint64_t tokens);

class StagingMemory;

// Page-locked host memory that experts pass through on their way to a GPU. Locking it takes as long
// as loading a layer: keep one for all layers of a model, for one constructor at a time. It holds
// nothing before the first of them, and never anything for the CPU.
class MOXIE_API LoadStaging {
 public:
  static constexpr std::uint64_t kDefaultBytes = std::uint64_t{512} << 20;

  // At most so many bytes, or one blob where that is more.
  explicit LoadStaging(std::uint64_t most_bytes = kDefaultBytes);
  ~LoadStaging();
  LoadStaging(LoadStaging&&) noexcept;
  LoadStaging& operator=(LoadStaging&&) noexcept;
  LoadStaging(const LoadStaging&) = delete;
  LoadStaging& operator=(const LoadStaging&) = delete;

  [[nodiscard]] std::uint64_t bytes() const;  // held now

 private:
  friend class MoeLayer;
  std::unique_ptr<StagingMemory> memory_;
};

// The routed experts of one layer on the ranks of this process. Owns the packed experts, on a GPU
// in device memory; their addresses do not change while it lives.
class MOXIE_API MoeLayer {
 public:
  // Binds. Errors: Error(unsupported) MOXIE-R001 when the planned kernel is not built here or does
  // not run this activation function, MOXIE-R002 when the ranks given do not fit the reduction;
  // Error(usage) MOXIE-R013 when MOXIE_FORCE leaves the planned kernel out; Error(input) MOXIE-R003
  // naming the expert when blobs are absent, of another size or layout, or hold a scalar that is
  // not finite and positive or a bias that is not finite; Error(environment) MOXIE-E004 when the
  // target's device is not here, MOXIE-E003 when its memory is too small.
  MoeLayer(const ShardPlan& plan, const LayerSpec& spec, std::vector<PackedExperts> ranks);
  // Loads: packs the experts of each source in parallel and binds them. On a GPU the host never
  // holds more of them than the staging has room for, on the device one packed blob lies beside
  // the experts meanwhile; on the CPU they are packed into place. What is refused without the
  // experts is refused before the first is packed. Errors: as above; what a source throws, with the
  // expert and the rank where it names none, and Error(environment) MOXIE-R023 for what is no
  // Error; Error(unsupported) MOXIE-R022 for an expert that the kernel can not hold. Null: a
  // staging of its own.
  MoeLayer(const ShardPlan& plan, const LayerSpec& spec, const std::vector<BlobSource>& sources,
           LoadStaging* staging = nullptr);
  ~MoeLayer();
  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) noexcept;
  MoeLayer(const MoeLayer&) = delete;
  MoeLayer& operator=(const MoeLayer&) = delete;

  [[nodiscard]] const ShardPlan& plan() const;
  [[nodiscard]] const LayerSpec& spec() const;
  [[nodiscard]] std::uint64_t workspace_size(std::uint64_t tokens) const;

  // y = sum over a token's slots of weight * expert(x), over the ranks held. No allocation, no
  // lock, no state: calls on different workspaces may run at the same time. `workspace` may hold
  // anything and has any alignment. `stream` is null on the CPU, and on a GPU the cudaStream_t that
  // the work is put into: the call returns before it is done, waits for nothing and can be captured
  // into a graph, which stays valid while layer, workspace and data live. The same token gives the
  // same bits whatever else is in the batch and whatever the number of threads; nvfp4 activations
  // with dynamic scales alone give up the former. Under the policy warmup, before freeze(), the
  // scales are the fallback, and every row is counted as guarded. x and y are aligned to their
  // elements; on the CPU the calling thread rounds to nearest, as every thread does that has not
  // been told otherwise.
  [[nodiscard]] CallStatus forward(const LayerIo& io, std::span<std::byte> workspace,
                                   void* stream = nullptr) const noexcept;

  // The same of rows that have been dispatched: y = scale * expert(x), row by row, with the bits
  // that forward() gives a token whose one choice the expert is. For a layer that holds one rank;
  // another gets bad_argument. Counts are read on the device, so a captured call serves any. x in
  // f8_e4m3 gives the bits of its values in f32.
  [[nodiscard]] CallStatus forward_rows(const RowsIo& io, std::span<std::byte> workspace,
                                        void* stream = nullptr) const noexcept;
  // Bytes of workspace for so many rows of x in this type, those of no expert included: in f8_e4m3
  // they need more. Errors: Error(usage) MOXIE-R008 for a layer of several ranks, more rows than a
  // call may have, or a type that x can not have.
  [[nodiscard]] std::uint64_t rows_workspace_size(std::uint64_t rows,
                                                  DType x_dtype = DType::f32) const;

  // nvfp4 activations, policy warmup. Measures: calls every rank held on these inputs and returns
  // `margin` * amax / 2688 for x and for what entered down, over valid slots only; a rank without
  // one, or with an amax of 0, keeps the fallback 1/2688. Nothing but the workspace is written.
  // Errors: Error(usage) MOXIE-R017 for a call that forward() would refuse, or another policy.
  [[nodiscard]] std::vector<ActScales> warm_up(const LayerIo& io, std::span<std::byte> workspace,
                                               double margin) const;
  // Takes these scales, one entry for each rank held, in rank order; before calls are captured, and
  // while none runs. Errors: Error(usage) MOXIE-R017 for scales out of range, or of x that differ
  // inside a tensor-parallel group, which quantises the same x.
  void freeze(std::span<const ActScales> scales);
  // Those in use; before freeze() all 0.
  [[nodiscard]] std::vector<ActScales> act_scales() const;

  // Replaces one expert of one held rank by another blob of the same layout, in place. Errors:
  // Error(input) MOXIE-R003 for a blob of another size or with values that are no numbers; the
  // expert is then unchanged. No call may run meanwhile.
  void reload(unsigned rank, std::uint64_t expert, std::span<const std::byte> blob);
  // The blob in use; on a GPU a copy that holds until the next call of this function.
  [[nodiscard]] std::span<const std::byte> blob(unsigned rank, std::uint64_t expert) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls of a layer with data in host memory, wherever the layer computes: on a GPU inputs are
// copied in before and results out after, and every call waits. Owns a workspace, one call at a
// time.
class MOXIE_API HostCall {
 public:
  // For calls of up to `tokens` tokens; the layer must outlive it.
  HostCall(const MoeLayer& layer, std::uint64_t tokens);
  ~HostCall();
  HostCall(HostCall&&) noexcept;
  HostCall& operator=(HostCall&&) noexcept;
  HostCall(const HostCall&) = delete;
  HostCall& operator=(const HostCall&) = delete;

  // Errors: Error(environment) MOXIE-E005 when the device fails.
  CallStatus forward(const LayerIo& io);
  std::vector<ActScales> warm_up(const LayerIo& io, double margin);
  // Pushes what calls read out of a GPU's cache; the CPU's is the caller's business.
  void evict();
  // Time of the last forward(), without the copies.
  [[nodiscard]] double us() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Calls of a layer on a GPU with several sets of inputs, one behind the other in one stream, as one
// CUDA graph: what a benchmark replays so that each call's experts come from memory and not from a
// cache. The layer must outlive it, and must not be reloaded while a replay runs.
class MOXIE_API DeviceReplay {
 public:
  // Copies the inputs, which are the host's, to the device; calls each set once, eagerly; captures.
  // x and y are dense, y's memory is not touched; taps, counts and traces are null. Errors:
  // Error(unsupported) MOXIE-R020 for a layer on the CPU; Error(usage) MOXIE-R020 for no set, or
  // one that the layer does not take; Error(environment) MOXIE-E003, MOXIE-E005.
  DeviceReplay(const MoeLayer& layer, std::span<const LayerIo> sets);
  ~DeviceReplay();
  DeviceReplay(DeviceReplay&&) noexcept;
  DeviceReplay& operator=(DeviceReplay&&) noexcept;
  DeviceReplay(const DeviceReplay&) = delete;
  DeviceReplay& operator=(const DeviceReplay&) = delete;

  [[nodiscard]] std::size_t sets() const;
  // Microseconds of all sets on the device: called one after another, or replayed.
  double call_us();
  double replay_us();
  // Microseconds that the host takes to call all sets once, eagerly, while the device has room for
  // calls.
  double host_us();
  // Overwrites every result and the workspace with NaN, and clears the flags.
  void clear_results();
  // Copies one set's y, [tokens, hidden] of its type, to the host; answers its flags.
  std::uint32_t copy_result(std::size_t set, std::span<std::byte> y) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One call of a router.
struct RouteIo {
  MatrixRef x;  // [tokens, router_hidden] bf16 or f32; scaled_softmax normalises it itself
  const std::int64_t* token_ids =
      nullptr;  // [tokens]; needed where Router::needs_token_ids(); a negative id masks a token
  std::int32_t* topk_ids = nullptr;  // [tokens, top_k]
  float* topk_weights = nullptr;     // [tokens, top_k]; final: normalised and scaled
  std::uint32_t* flags = nullptr;    // one word
};

// A layer's own router, read from the checkpoint: logits in fp32, selection, final weights. Ties go
// to the lower expert id.
class MOXIE_API Router {
 public:
  // Errors: Error(input) MOXIE-M016 when a router tensor is absent, of another type or shape, or
  // holds an expert id outside the model or a bias that is no number; Error(unsupported) MOXIE-R004
  // for a kind of router that is not built.
  Router(const MoeModel& model, int layer, std::uint64_t top_k);
  ~Router();
  Router(Router&&) noexcept;
  Router& operator=(Router&&) noexcept;
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  [[nodiscard]] bool needs_token_ids() const;
  [[nodiscard]] std::uint64_t workspace_size(std::uint64_t tokens) const;
  // As MoeLayer::forward: no allocation, no lock, no state.
  [[nodiscard]] CallStatus route(const RouteIo& io, std::span<std::byte> workspace) const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace moxie
