// SPDX-License-Identifier: Apache-2.0
// What is packed is chosen and checked first, then streamed into staged folders, then made visible.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <system_error>

#include "base/errors.hpp"
#include "base/mapped_file.hpp"
#include "base/staged_file.hpp"
#include "moxie/pack.hpp"
#include "pack/folder_stream.hpp"
#include "pack/output_folder.hpp"
#include "pack/packed_files.hpp"
#include "pack/packed_names.hpp"
#include "pack/packed_set.hpp"
#include "pack/source_config.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

// A source is read once for so many ranks: each has files open.
constexpr std::size_t kRanksAtOnce = 250;

[[noreturn]] void refuse(ErrorCode code, std::string finding_code, const fs::path& path,
                         std::string message, std::string hint = {}) {
  throw Error(code, {.code = std::move(finding_code),
                     .message = std::move(message),
                     .where = {.file = path.string()},
                     .hint = std::move(hint)});
}

class FolderPacker {
 public:
  FolderPacker(const MoeModel& model, const ShardPlan& plan, const PackOptions& options)
      : model_(model),
        plan_(plan),
        options_(options),
        document_(packed_plan_json(plan, options.layout)) {
    choose_ranks();
    PackedFiles chosen = choose_files(model, plan, options);
    files_ = std::move(chosen.files);
    report_.layers = std::move(chosen.layers);
    report_.findings = std::move(chosen.findings);
    for (const TensorInfo* source : sources_of(files_, report_.ranks))
      report_.source_bytes += source->bytes;
    for (const PackedFile& file : files_) {
      for (const unsigned rank : report_.ranks) total_ += file.bytes_of(rank);
    }
    stream_.emplace(model_, files_, options_, [this](std::uint64_t bytes) {
      done_ += bytes;
      report_progress(options_.progress, done_, total_);
    });
  }

  [[nodiscard]] std::vector<fs::path> source_files() const {
    std::set<std::uint32_t> files;
    for (const TensorInfo* source : sources_of(files_, report_.ranks)) files.insert(source->file);
    std::vector<fs::path> paths;
    for (const std::uint32_t file : files) paths.push_back(model_.checkpoint.files()[file].path);
    return paths;
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
    remove_abandoned(options_.out);
    check_space();
    std::vector<std::unique_ptr<StagedFolder>> staged;
    for (const unsigned rank : report_.ranks)
      staged.push_back(std::make_unique<StagedFolder>(options_.out / rank_folder_name(rank)));
    pack_ranks(staged);
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
    std::ranges::sort(report_.ranks);
    const auto repeated = std::ranges::unique(report_.ranks);
    report_.ranks.erase(repeated.begin(), repeated.end());
    for (const unsigned rank : report_.ranks) {
      if (rank >= plan_.ranks.size()) {
        refuse(ErrorCode::usage, "MOXIE-K004", options_.out,
               "rank " + std::to_string(rank) + " is not in a plan of " +
                   std::to_string(plan_.ranks.size()) + " ranks");
      }
    }
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

  void pack_ranks(const std::vector<std::unique_ptr<StagedFolder>>& staged) {
    for (std::size_t begin = 0; begin < staged.size(); begin += kRanksAtOnce) {
      const std::size_t end = std::min(begin + kRanksAtOnce, staged.size());
      std::vector<unsigned> ranks;
      std::vector<fs::path> folders;
      for (std::size_t i = begin; i < end; ++i) {
        ranks.push_back(report_.ranks[i]);
        folders.push_back(staged[i]->staging());
      }
      const std::vector<std::vector<WrittenFile>> written = stream_->write(ranks, folders);
      for (std::size_t i = 0; i < folders.size(); ++i) list_files(written, i, folders[i]);
    }
  }

  // files.json of one rank.
  void list_files(const std::vector<std::vector<WrittenFile>>& written, std::size_t rank,
                  const fs::path& folder) {
    Json files = Json::object();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const WrittenFile& file = written[i][rank];
      files.set(files_[i].name,
                Json::object().set("bytes", file.bytes).set("xxh3_128", file.checksum));
      report_.bytes += file.bytes;
      ++report_.files;
    }
    Json layers = Json::array();
    for (const int layer : report_.layers) layers.push_back(layer);
    Json list;
    list.set("plan_hash", *document_.find("plan_hash")).set("files", std::move(files));
    const auto top = std::ranges::find(files_, kTopFile, &PackedFile::name);
    list.set("layers", std::move(layers)).set("top", top != files_.end());
    write_text_file(folder / kFilesFile, list.dump() + "\n");
  }

  const MoeModel& model_;
  const ShardPlan& plan_;
  const PackOptions& options_;
  Json document_;
  PackReport report_;
  std::vector<PackedFile> files_;
  std::optional<FolderStream> stream_;
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

std::vector<fs::path> files_to_pack(const MoeModel& model, const ShardPlan& plan,
                                    const PackOptions& options) {
  return FolderPacker(model, plan, options).source_files();
}

}  // namespace moxie
