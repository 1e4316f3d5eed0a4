// SPDX-License-Identifier: Apache-2.0
// A packed set in which single things can be made wrong, with or without a checksum that agrees.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/hash.hpp"
#include "moxie/pack.hpp"
#include "moxie/verify.hpp"
#include "support/packed_model.hpp"

namespace moxie::test {

// Whether files.json is made to agree with what was changed: a checksum finds damage, but only the
// comparison finds what was packed wrong.
enum class Checksum : std::uint8_t { stale, agrees };

inline TinyOptions two_layers() {
  TinyOptions options = tiny_options(BlockFormat::mxfp4);
  options.layers = 2;
  return options;
}

// A folder that holds a packed set, to be edited.
class SetOnDisk {
 public:
  const std::filesystem::path& path() const { return path_; }
  static std::string rank_folder(unsigned rank) { return "rank-00" + std::to_string(rank); }
  std::filesystem::path file(unsigned rank, int layer = 0) const {
    return file(rank, "model-0000" + std::to_string(layer) + ".safetensors");
  }
  std::filesystem::path file(unsigned rank, std::string_view name) const {
    return path_ / rank_folder(rank) / name;
  }
  std::filesystem::path proof() const { return path_ / "moxie-proof.json"; }

  // In place where the size allows it: file systems flush a file that is cut to nothing first.
  void write(const std::filesystem::path& path_to, std::string_view bytes) const {
    std::error_code error;
    const bool same_size = std::filesystem::file_size(path_to, error) == bytes.size() && !error;
    const auto mode = same_size ? std::ios::in | std::ios::out : std::ios::out;
    std::filesystem::create_directories(path_to.parent_path());
    std::fstream(path_to, std::ios::binary | mode)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }
  // Changes the bytes of a file.
  void edit(const std::filesystem::path& path_to,
            const std::function<void(std::string&)>& change) const {
    std::string bytes = read_bytes(path_to);
    change(bytes);
    write(path_to, bytes);
  }
  void edit_json(const std::filesystem::path& path_to,
                 const std::function<void(Json&)>& change) const {
    Json json = Json::parse(read_bytes(path_to), path_to.string());
    change(json);
    write(path_to, json.dump() + "\n");
  }

  // Makes files.json of a rank state what its files are.
  void agree(unsigned rank) const {
    const auto folder = path_ / rank_folder(rank);
    edit_json(folder / "files.json", [&](Json& list) {
      Json files = Json::object();
      for (const JsonMember& member : list.find("files")->members()) {
        const std::string bytes = read_bytes(folder / member.key);
        files.set(member.key,
                  Json::object().set("bytes", bytes.size()).set("xxh3_128", hash_hex(bytes)));
      }
      list.set("files", std::move(files));
    });
  }

 protected:
  std::filesystem::path path_;
};

class PackedFolder : public SetOnDisk {
 public:
  PackedFolder(const TinyOptions& options, const PlanOptions& plan,
               FileLayout layout = FileLayout::logical)
      : model_(options), plan_(make_plan(*model_, plan)), layout_(layout) {
    path_ = model_ / "packed";
    pack_to_folder(*model_, plan_, {.out = path_, .layout = layout});
  }

  const TinyModel& model() const { return model_; }
  const ShardPlan& plan() const { return plan_; }
  FileLayout layout() const { return layout_; }

  VerifyReport verify() const { return verify_packed(path(), *model_); }

  // Where a segment of an expert of layer 0 begins in its rank's file.
  std::uint64_t place_of(unsigned rank, std::uint64_t expert, Segment segment) const {
    const Checkpoint packed = open_checkpoint(path() / rank_folder(rank));
    if (layout_ == FileLayout::kernel) {
      const std::uint64_t local = plan_.ranks[rank].experts.slot_of(expert).value();
      return packed.find("layers.0.experts")->offset + local * plan_.layout.stride +
             plan_.layout.find(segment)->offset;
    }
    const TensorInfo* source = source_of_segment(model_.layer().experts[expert], segment);
    return packed.find(source->name)->offset;
  }

 private:
  TinyModel model_;
  ShardPlan plan_;
  FileLayout layout_;
};

// Makes a file wrong for as long as it lives.
class PlantedFault {
 public:
  PlantedFault(const SetOnDisk& set, unsigned rank, Checksum checksum,
               const std::function<void(std::string&)>& change, int layer = 0)
      : PlantedFault(set, rank, checksum, change, set.file(rank, layer)) {}
  PlantedFault(const SetOnDisk& set, unsigned rank, Checksum checksum,
               const std::function<void(std::string&)>& change, std::filesystem::path file)
      : set_(set),
        file_(std::move(file)),
        list_(set.path() / SetOnDisk::rank_folder(rank) / "files.json"),
        intact_(read_bytes(file_)),
        intact_list_(read_bytes(list_)) {
    set.edit(file_, change);
    if (checksum == Checksum::agrees) set.agree(rank);
  }
  ~PlantedFault() {
    set_.write(file_, intact_);
    set_.write(list_, intact_list_);
  }
  PlantedFault(const PlantedFault&) = delete;
  PlantedFault& operator=(const PlantedFault&) = delete;

 private:
  const SetOnDisk& set_;
  std::filesystem::path file_;
  std::filesystem::path list_;
  std::string intact_;
  std::string intact_list_;
};

inline void flip(std::string& bytes, std::uint64_t at) { bytes.at(at) ^= 0x01; }

// The finding with this code, or a failure.
inline Finding finding_of(const VerifyReport& report, std::string_view code) {
  for (const Finding& finding : report.findings) {
    if (finding.code == code) return finding;
  }
  ADD_FAILURE() << "no finding " << code << " among " << report.findings.size()
                << (report.findings.empty() ? "" : ", first: " + to_string(report.findings[0]));
  return {};
}

inline std::uint64_t count_of(const VerifyReport& report, std::string_view code) {
  return static_cast<std::uint64_t>(std::ranges::count(report.findings, code, &Finding::code));
}

}  // namespace moxie::test
