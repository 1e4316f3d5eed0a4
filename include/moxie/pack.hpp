// SPDX-License-Identifier: Apache-2.0
// Carries a plan out: exactly the planned bytes of each expert, zero tails, one contiguous blob per
// expert.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "moxie/model.hpp"
#include "moxie/plan.hpp"
#include "moxie/status.hpp"

namespace moxie {

// One rank's experts of one layer in memory.
struct PackedExperts {
  unsigned rank = 0;
  PackedLayout layout;
  RankExperts experts;
  std::vector<std::byte> blobs;  // [local experts, stride], in slot order

  [[nodiscard]] std::span<const std::byte> blob(std::uint64_t expert) const {
    return std::span(blobs).subspan(experts.slot_of(expert).value() * layout.stride, layout.stride);
  }
};

// Packs one expert into `blob` (layout.stride bytes), overwriting all of it. Errors: Error(input)
// for a scale code that is NaN or negative, or a consumed scalar that is absent, not finite or not
// positive.
MOXIE_API void pack_expert(const MoeModel& model, const ShardPlan& plan, const RankPlan& rank,
                           const LayerExperts& layer, std::uint64_t expert,
                           std::span<std::byte> blob);

// Where the experts of one rank come from, one at a time into memory that somebody lends: nobody
// needs to hold all blobs at once.
struct BlobSource {
  unsigned rank = 0;
  PackedLayout layout;
  RankExperts experts;
  // Writes all of one expert's blob, layout.stride bytes that may hold anything before. Called from
  // several threads at once, in any order; throws what it refuses.
  std::function<void(std::uint64_t expert, std::span<std::byte> blob)> pack_expert;
  // Called once after all experts; may refuse as well. Empty: nothing to say.
  std::function<void()> finish = {};
  // Above one: a blob may be written by `parts` calls of pack_part instead, from several threads at
  // once, so that one expert is ready before many are begun. Each byte is written by exactly one
  // of them, those between and behind the tensors too, and nothing reads what another writes. Part
  // 0 is handed out first; what pack_part refuses is what pack_expert does, each part its own.
  // Whoever puts another pack_expert into a source sets this to one or replaces pack_part as well.
  unsigned parts = 1;
  std::function<void(std::uint64_t expert, unsigned part, std::span<std::byte> blob)> pack_part =
      {};
  // Where all blobs lie in a file as pack_expert would write them, in slot order, layout.stride
  // apart: whoever reads them there needs no copy, and nobody may write to the file or cut it short
  // meanwhile. Whoever puts another pack_expert into a source takes this away.
  struct InFile {
    std::filesystem::path path;
    std::uint64_t offset = 0;
    std::optional<int> layer = {};  // said by who refuses a blob, where it is known
  };
  std::optional<InFile> in_file = {};
};
// Experts of a checkpoint, by pack_expert(), of a packed set, as load_packed() gives them, or
// random ones, as draw_experts() gives them. What a source is made from must outlive it; pages that
// were read are let go of on the way. Errors: as those functions; at once for a rank or a layer
// that is absent, and Error(unsupported) MOXIE-M009 for a layer of a checkpoint that is not the
// plan's in format or number of experts (plan_to_run() makes its plan); else by the source.
MOXIE_API BlobSource blob_source(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                                 int layer);
MOXIE_API BlobSource drawn_source(const ShardPlan& plan, unsigned rank, std::uint64_t seed);
// All of a source's experts, packed in parallel.
MOXIE_API PackedExperts pack(const BlobSource& source);

// Packs all experts that `rank` owns of one layer, in parallel.
MOXIE_API PackedExperts pack(const MoeModel& model, const ShardPlan& plan, unsigned rank,
                             int layer);

// Random experts of one rank in place of a checkpoint's, from a seed, in parallel: codes uniform
// over all sixteen; MXFP4 scales uniform over 2^-10 .. 2^-7; NVFP4 scales uniform over the positive
// E4M3 numbers, with globals between 2^-15 and 2^-14, one of gate and up; biases of magnitude 2^-4
// .. 2^-3; tails zero. Ranks of a plan draw independently, but for experts that lie on several
// groups, which all draw the same: joined they are a layer, but another one for every plan.
MOXIE_API PackedExperts draw_experts(const ShardPlan& plan, unsigned rank, std::uint64_t seed);

// The tensors of one expert at their full (checkpoint) size, by segment; what `unpack_expert`
// writes into.
struct UnpackedExpert {
  std::vector<std::vector<std::byte>>
      tensors;  // indexed by Segment; empty for a segment the plan lacks
};

// Buffers of the checkpoint's own sizes, every byte `fill`.
MOXIE_API UnpackedExpert make_unpacked(const ShardPlan& plan, std::byte fill);
// The inverse of pack_expert: writes the rank's real part to its place in `out`; over all ranks of
// an expert `out` ends up byte-identical to the source. Error(verdict) MOXIE-V003 when a tail byte
// is not zero.
MOXIE_API void unpack_expert(const ShardPlan& plan, const RankPlan& rank,
                             std::span<const std::byte> blob, UnpackedExpert& out);

// How packed files are laid out: one named tensor per expert tensor, or one U8 tensor of blobs per
// layer.
enum class FileLayout : std::uint8_t { logical, kernel };
MOXIE_API std::string_view name_of(FileLayout layout);

struct PackOptions {
  std::filesystem::path out;
  std::vector<unsigned> ranks;  // empty: all
  std::vector<int> layers;      // empty: all main layers; of a whole model everything
  bool drafts = true;           // without `layers`: draft blocks of a whole model, too
  FileLayout layout = FileLayout::logical;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;  // bound on the buffers
  Progress progress;                                    // bytes packed
};

struct PackReport {
  std::vector<unsigned> ranks;
  std::vector<int> layers;
  std::uint64_t bytes = 0;  // written, all files
  std::uint64_t files = 0;
  std::uint64_t source_bytes = 0;  // of the tensors that were packed, each once
  std::string plan_hash;
  std::vector<Finding> findings;  // notes and warnings
};

// Writes DIR/rank-RRR/model-LLLLL.safetensors, files.json beside them, DIR/moxie-plan.json and
// config.json. Of a DeepSeek-V4 checkpoint that holds more than routed experts and routers all
// tensors are packed: those of a layer into its file, the others into model-top.safetensors, which
// is left out when `layers` names some. Where any of these tensors is there, all have to be; where
// the config does not size them, `layers` packs the experts alone. The source is read once for all
// ranks. Nothing is visible under its final name before it is complete; on any error what was begun
// is removed. Refuses (usage) a folder that holds another plan or these ranks already.
MOXIE_API PackReport pack_to_folder(const MoeModel& model, const ShardPlan& plan,
                                    const PackOptions& options);
// The files of the source that packing reads tensors from. Errors: those of pack_to_folder that
// headers tell.
MOXIE_API std::vector<std::filesystem::path> files_to_pack(const MoeModel& model,
                                                           const ShardPlan& plan,
                                                           const PackOptions& options);

// What headers tell of a DeepSeek-V4 checkpoint that holds more than routed experts, as
// pack_to_folder() refuses it or warns of it: listed tensors that are absent or of another type or
// shape (MOXIE-K013), one of each absent shard of a layer (MOXIE-C010), a config that does not size
// them (MOXIE-K015) or count the draft blocks (MOXIE-K016, MOXIE-K017). Of these layers, or of
// everything.
MOXIE_API std::vector<Finding> check_whole_model(const MoeModel& model,
                                                 const std::vector<int>& layers = {});

// Every stored scale, scalar, bias and router value of a layer that no reader may use, the first of
// each tensor; of a layer that is there as a whole also values of its other tensors that are no
// numbers. Activation scales as warnings. `progress` counts experts. Error(input) with the layer's
// problems.
MOXIE_API std::vector<Finding> check_stored_values(const MoeModel& model, int layer,
                                                   const Progress& progress = {});
// The same for tensors that belong to no layer.
MOXIE_API std::vector<Finding> check_stored_top(const MoeModel& model);

// A folder written by pack_to_folder, opened for running: the plan it was made under and what is in
// it. Reads plan, file lists and headers.
struct PackedFolder {
  std::filesystem::path path;
  ShardPlan plan;
  ModelConfig config;  // of the copied config.json
  FileLayout layout = FileLayout::logical;
  std::string plan_hash;
  std::vector<unsigned> ranks;                   // present
  std::map<std::string, std::string> checksums;  // xxh3_128 by "rank-000/model-00000.safetensors"
  std::vector<int> layers;                       // held by every rank that is present, ascending
  std::vector<Finding> findings;  // MOXIE-K009 (warning) when no valid proof of the set exists
};
// True when the folder holds moxie-plan.json.
MOXIE_API bool is_packed_folder(const std::filesystem::path& path);
// Error(input) MOXIE-K005 for a folder that is no packed set or whose plan does not match its hash.
MOXIE_API PackedFolder open_packed_folder(const std::filesystem::path& path);
// One rank's experts of one layer, in parallel. Error(input) when the rank or the layer is absent,
// the file does not match its checksum, a tensor has another type or shape than the plan gives it,
// or a scale or scalar is no number.
MOXIE_API PackedExperts load_packed(const PackedFolder& folder, unsigned rank, int layer);

// Every byte of a rank's tensors that belong to no layer against its checksum; nothing where the
// rank has none. Error(input) MOXIE-K005.
MOXIE_API void check_packed_top(const PackedFolder& folder, unsigned rank);

// The tensors around the routed experts that plan and config list, on every rank that is here, and
// the files that pack wrote: what is absent or of another type or shape is MOXIE-V004. `deep`:
// their values as check_stored_values() looks at a checkpoint's. Of these layers, or of everything.
MOXIE_API std::vector<Finding> check_packed_tensors(const PackedFolder& folder, bool deep,
                                                    const std::vector<int>& layers = {});

MOXIE_API BlobSource blob_source(const PackedFolder& folder, unsigned rank, int layer);

// The plan as one layer follows it: draft blocks may have a number of experts of their own, and in
// logical files a format of their own. What load_packed() and blob_source() give is packed so.
MOXIE_API ShardPlan plan_of_layer(const PackedFolder& folder, int layer);
// The same for running the layer, with the plan's kernels. Error(unsupported) MOXIE-M009 for a
// layer in another format than the plan's.
MOXIE_API ShardPlan plan_to_run(const PackedFolder& folder, int layer);
MOXIE_API ShardPlan plan_to_run(const MoeModel& model, const ShardPlan& plan, int layer);

// The plan with `layout` (file layout, offsets) and `plan_hash` as moxie-plan.json holds it.
MOXIE_API Json packed_plan_json(const ShardPlan& plan, FileLayout layout);

}  // namespace moxie
