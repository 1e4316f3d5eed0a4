// SPDX-License-Identifier: Apache-2.0
// Streams packed experts into files: experts of a batch are packed in parallel, then written in
// order.
#include <algorithm>
#include <optional>
#include <set>
#include <system_error>

#include "base/errors.hpp"
#include "base/mapped_file.hpp"
#include "base/parallel.hpp"
#include "base/staged_file.hpp"
#include "checkpoint/safetensors_writer.hpp"
#include "moxie/pack.hpp"
#include "pack/logical_tensor.hpp"
#include "pack/output_folder.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/source_config.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

// Larger batches gain nothing: the packed bytes should still be in cache when they are written.
constexpr std::uint64_t kLargestBatchBytes = std::uint64_t{64} << 20;

[[noreturn]] void refuse(ErrorCode code, std::string finding_code, const fs::path& path,
                         std::string message, std::string hint = {}) {
  throw Error(code, {.code = std::move(finding_code),
                     .message = std::move(message),
                     .where = {.file = path.string()},
                     .hint = std::move(hint)});
}

template <class Number>
void sort_unique(std::vector<Number>& numbers) {
  std::ranges::sort(numbers);
  const auto repeated = std::ranges::unique(numbers);
  numbers.erase(repeated.begin(), repeated.end());
}

class FolderPacker {
 public:
  FolderPacker(const MoeModel& model, const ShardPlan& plan, const PackOptions& options)
      : model_(model),
        plan_(plan),
        options_(options),
        document_(packed_plan_json(plan, options.layout)) {
    choose_ranks();
    choose_layers();
    choose_batch();
    for (const unsigned rank : report_.ranks)
      total_ += plan_.ranks[rank].bytes_layer * report_.layers.size();
  }

  PackReport pack() {
    if (plan_.recast && options_.layout == FileLayout::logical) {
      refuse(ErrorCode::unsupported, "MOXIE-K012", options_.out,
             "NVFP4 experts that are packed as MXFP4 with globals have no logical layout",
             "use --layout kernel, or plan without the certificate");
    }
    if (fs::exists(options_.out) && !fs::is_directory(options_.out))
      refuse(ErrorCode::usage, "MOXIE-K001", options_.out, "output is no folder");
    std::optional<FolderLock> lock;  // outlives `folder`, which cleans up under it
    OutputFolder folder(options_.out);
    check_folder();
    check_space();
    std::vector<std::unique_ptr<StagedFolder>> staged;
    for (const unsigned rank : report_.ranks) {
      staged.push_back(std::make_unique<StagedFolder>(options_.out / rank_folder_name(rank)));
      pack_rank(plan_.ranks[rank], staged.back()->staging());
    }
    // What others have put there meanwhile counts: look again with nobody else publishing.
    lock.emplace(options_.out);
    check_folder();
    std::error_code ignored;
    fs::remove(options_.out / kProofFile, ignored);  // it spoke of fewer ranks
    folder.write(kPlanFile, document_.dump());
    for (const std::string_view name : kConfigFiles) {
      if (const auto text = source_config(model_.checkpoint, name)) folder.write(name, *text);
    }
    for (std::size_t i = 0; i < staged.size(); ++i)
      folder.commit(*staged[i], rank_folder_name(report_.ranks[i]));
    folder.keep();
    report_.plan_hash = document_.find("plan_hash")->as_string();
    return std::move(report_);
  }

 private:
  void choose_ranks() {
    report_.ranks = options_.ranks;
    if (report_.ranks.empty()) {
      for (const RankPlan& rank : plan_.ranks) report_.ranks.push_back(rank.rank);
    }
    sort_unique(report_.ranks);
    for (const unsigned rank : report_.ranks) {
      if (rank >= plan_.ranks.size()) {
        refuse(ErrorCode::usage, "MOXIE-K004", options_.out,
               "rank " + std::to_string(rank) + " is not in a plan of " +
                   std::to_string(plan_.ranks.size()) + " ranks");
      }
    }
  }

  // Every layer is checked before a byte is written.
  void choose_layers() {
    report_.layers = options_.layers;
    if (report_.layers.empty()) {
      for (const LayerExperts& layer : model_.layers) {
        if (!layer.mtp) report_.layers.push_back(layer.layer);
      }
    }
    if (report_.layers.empty()) {
      refuse(ErrorCode::input, "MOXIE-M011", model_.checkpoint.path(),
             "there is no layer with expert tensors to pack");
    }
    sort_unique(report_.layers);
    for (const int number : report_.layers) {
      const LayerExperts& layer = model_.require_layer(number);
      require_equal("number of experts", number, std::to_string(plan_.experts),
                    std::to_string(layer.experts.size()));
      require_equal("format", number, std::string(name_of(plan_.format)),
                    std::string(name_of(layer.format)));
    }
  }

  static void require_equal(std::string_view what, int layer, std::string planned,
                            std::string found) {
    if (planned == found) return;
    throw Error(ErrorCode::unsupported,
                {.code = "MOXIE-M009",
                 .message = "the layer's " + std::string(what) + " is not the plan's",
                 .where = {.layer = layer},
                 .expected = std::move(planned),
                 .got = std::move(found)});
  }

  // As many experts at a time as fit into half the memory; the other half is slack for the pages
  // around what is read and for the file headers. Of the source a rank touches no more than the
  // whole expert, and not much less: columns of down lie on all its pages.
  void choose_batch() {
    const std::uint64_t stride = plan_.layout.stride;
    const std::uint64_t expert = stride + expert_bytes(model_.config, plan_.format);
    if (options_.memory_bytes / 2 < expert) {
      refuse(ErrorCode::usage, "MOXIE-K004", options_.out,
             "--memory is too small for one expert of " + std::to_string(stride) +
                 " packed bytes and its source",
             "give at least " + std::to_string(2 * expert) + " bytes");
    }
    batch_experts_ = std::min(options_.memory_bytes / 2 / expert,
                              std::max<std::uint64_t>(kLargestBatchBytes / stride, 1));
  }

  void check_folder() const {
    const fs::path plan_path = options_.out / kPlanFile;
    if (!fs::exists(plan_path)) {
      if (!is_free_folder(options_.out)) {
        refuse(ErrorCode::usage, "MOXIE-K001", options_.out,
               "output folder is not empty and is no packed set", "choose another --out");
      }
      return;
    }
    if (read_text_file(plan_path) != document_.dump()) {
      refuse(ErrorCode::usage, "MOXIE-K001", options_.out, "output folder holds another plan",
             "choose another --out");
    }
    for (const unsigned rank : report_.ranks) {
      const fs::path rank_folder = options_.out / rank_folder_name(rank);
      if (fs::exists(rank_folder)) {
        refuse(ErrorCode::usage, "MOXIE-K001", rank_folder, "rank is packed already",
               "remove the folder to pack it again");
      }
    }
  }

  void check_space() const {
    std::error_code error;
    const fs::space_info space = fs::space(options_.out, error);
    if (!error && space.available < total_) {
      refuse(ErrorCode::environment, "MOXIE-E002", options_.out,
             "disk has " + std::to_string(space.available) + " bytes free, packing needs " +
                 std::to_string(total_));
    }
  }

  void pack_rank(const RankPlan& rank, const fs::path& folder) {
    Json files = Json::object();
    for (const int layer : report_.layers) {
      const std::string name = layer_file_name(layer);
      files.set(name, pack_layer(rank, model_.require_layer(layer), folder / name));
      ++report_.files;
    }
    Json list;
    list.set("plan_hash", *document_.find("plan_hash")).set("files", std::move(files));
    write_text_file(folder / kFilesFile, list.dump() + "\n");
  }

  // Returns {bytes, xxh3_128} of the file.
  Json pack_layer(const RankPlan& rank, const LayerExperts& layer, const fs::path& path) {
    std::vector<std::vector<LogicalTensor>> logical;
    std::vector<TensorEntry> entries;
    const std::uint64_t stride = plan_.layout.stride;
    if (options_.layout == FileLayout::kernel) {
      entries.push_back(
          {blobs_tensor_name(layer.layer), DType::u8, {rank.experts.count(), stride}});
    } else {
      for (std::uint64_t slot = 0; slot < rank.experts.count(); ++slot) {
        const std::uint64_t expert = rank.experts.id(slot);
        logical.push_back(logical_tensors(model_.checkpoint, plan_.layout, layer, expert));
        for (const LogicalTensor& tensor : logical.back()) entries.push_back(tensor.entry);
      }
    }
    SafetensorsWriter writer(path, entries);
    std::vector<std::byte> batch(std::min(batch_experts_, rank.experts.count()) * stride);
    for (std::uint64_t first = 0; first < rank.experts.count(); first += batch_experts_) {
      const std::uint64_t count = std::min(batch_experts_, rank.experts.count() - first);
      parallel_for(count, [&](std::uint64_t i) {
        pack_expert(model_, plan_, rank, layer, rank.experts.id(first + i),
                    std::span(batch).subspan(i * stride, stride));
      });
      for (std::uint64_t i = 0; i < count; ++i) {
        const auto blob = std::span<const std::byte>(batch).subspan(i * stride, stride);
        if (options_.layout == FileLayout::kernel) {
          writer.write(blob);
        } else {
          for (const LogicalTensor& tensor : logical[first + i])
            write_logical(tensor, blob, writer);
        }
        done_ += plan_.layout.expert_bytes;
        report_progress(options_.progress, done_, total_);
      }
      release_sources(layer);
    }
    writer.commit();
    report_.bytes += writer.bytes();
    Json record;
    record.set("bytes", writer.bytes()).set("xxh3_128", writer.checksum());
    return record;
  }

  // Keeps resident source pages to one batch.
  void release_sources(const LayerExperts& layer) const {
    std::set<std::uint32_t> files;
    for (const ExpertTensors& expert : layer.experts) {
      for (const ProjectionKind kind : projections_of(model_.config)) {
        files.insert(expert[kind].codes.tensor->file);
        files.insert(expert[kind].block_scales.tensor->file);
      }
    }
    for (const std::uint32_t file : files) model_.checkpoint.release(file);
  }

  const MoeModel& model_;
  const ShardPlan& plan_;
  const PackOptions& options_;
  Json document_;
  PackReport report_;
  std::uint64_t batch_experts_ = 1;
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace

PackReport pack_to_folder(const MoeModel& model, const ShardPlan& plan,
                          const PackOptions& options) {
  try {
    return FolderPacker(model, plan, options).pack();
  } catch (const fs::filesystem_error& error) {
    raise_system("look at", error.path1(), error.code().value());
  }
}

}  // namespace moxie
