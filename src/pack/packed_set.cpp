// SPDX-License-Identifier: Apache-2.0
// moxie-plan.json, rank-RRR/files.json and the headers of rank-RRR/*.safetensors.
#include "pack/packed_set.hpp"

#include <charconv>
#include <system_error>
#include <utility>

#include "base/hash.hpp"
#include "base/mapped_file.hpp"
#include "pack/packed_names.hpp"

namespace moxie {

namespace fs = std::filesystem;

namespace {

std::string zero_padded(std::uint64_t number, std::size_t digits) {
  std::string text = std::to_string(number);
  return text.size() < digits ? std::string(digits - text.size(), '0') + text : text;
}

[[noreturn]] void refuse(const fs::path& file, std::string message) {
  throw Error(
      ErrorCode::input,
      {.code = "MOXIE-K005", .message = std::move(message), .where = {.file = file.string()}});
}

PackedRank open_rank(const fs::path& folder, unsigned rank) {
  const fs::path list = folder / kFilesFile;
  if (!fs::exists(list)) refuse(list, "rank folder has no files.json");
  const Json document = Json::parse(read_text_file(list), list.string());
  PackedRank packed{.rank = rank,
                    .folder = folder,
                    .checkpoint = {},
                    .problems = {},
                    .plan_hash = {},
                    .files = {}};
  if (const Json* hash = document.find("plan_hash")) packed.plan_hash = hash->as_string();
  const Json* files = document.find("files");
  if (files == nullptr) refuse(list, "files.json lists no files");
  for (const JsonMember& file : files->members()) {
    const Json* bytes = file.value.find("bytes");
    const Json* checksum = file.value.find("xxh3_128");
    if (bytes == nullptr || checksum == nullptr)
      refuse(list, "entry " + file.key + " lacks bytes or xxh3_128");
    packed.files[file.key] = {bytes->as_unsigned(), checksum->as_string()};
  }
  const Json* layers = document.find("layers");
  const Json* top = document.find("top");
  if (layers != nullptr && top != nullptr) {
    packed.packed = {.layers = {}, .top = top->as_bool()};
    for (const Json& layer : layers->elements())
      packed.packed->layers.push_back(static_cast<int>(layer.as_unsigned()));
  }
  try {
    packed.checkpoint = open_checkpoint(folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::input) throw;
    packed.problems = error.findings();
    // What reads files in general speaks of downloads; these were made here.
    for (Finding& problem : packed.problems) {
      problem.where.rank = rank;
      problem.hint = "pack the rank again";
    }
  }
  return packed;
}

}  // namespace

std::string rank_folder_name(unsigned rank) { return "rank-" + zero_padded(rank, 3); }

std::string layer_file_name(int layer) {
  return "model-" + zero_padded(static_cast<std::uint64_t>(layer), 5) + ".safetensors";
}

std::optional<int> layer_of_file(const std::string& name) {
  int layer = 0;
  const auto digits = name.find_first_of("0123456789");
  if (digits == std::string::npos) return std::nullopt;
  const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), layer);
  if (error != std::errc() || name != layer_file_name(layer)) return std::nullopt;
  return layer;
}

std::string blobs_tensor_name(int layer) { return "layers." + std::to_string(layer) + ".experts"; }

std::string_view name_of(FileLayout layout) {
  return layout == FileLayout::logical ? "logical" : "kernel";
}

std::string plan_hash_of(Json document) {
  document.erase("plan_hash");
  return hash_hex(document.dump());
}

Json packed_plan_json(const ShardPlan& plan, FileLayout layout) {
  Json document = to_json(plan);
  Json offsets;
  offsets.set("files", name_of(layout));
  const Json linear = to_json(plan.layout);
  for (const JsonMember& member : linear.members()) {
    offsets.set(member.key, member.value);
  }
  document.set("layout", std::move(offsets));
  document.set("plan_hash", plan_hash_of(document));
  return document;
}

bool is_packed_set(const fs::path& folder) { return fs::is_regular_file(folder / kPlanFile); }

PackedSet open_packed_set(const fs::path& folder) {
  const fs::path plan_path = folder / kPlanFile;
  if (!is_packed_set(folder)) refuse(folder, "not a packed set: no " + std::string(kPlanFile));
  const Json document = Json::parse(read_text_file(plan_path), plan_path.string());
  PackedSet set;
  set.folder = folder;
  set.plan = plan_from_json(document, plan_path.string());
  set.actual_plan_hash = plan_hash_of(document);
  const Json* hash = document.find("plan_hash");
  const Json* layout = document.find("layout");
  const Json* files = layout != nullptr ? layout->find("files") : nullptr;
  if (hash == nullptr || files == nullptr)
    refuse(plan_path, "plan lacks plan_hash or layout.files");
  set.plan_hash = hash->as_string();
  for (const FileLayout known : {FileLayout::logical, FileLayout::kernel}) {
    if (files->as_string() == name_of(known)) set.layout = known;
  }
  if (files->as_string() != name_of(set.layout)) {
    refuse(plan_path, "layout.files is neither logical nor kernel");
  }
  for (const RankPlan& rank : set.plan.ranks) {
    const fs::path rank_folder = folder / rank_folder_name(rank.rank);
    if (fs::is_directory(rank_folder)) set.ranks.push_back(open_rank(rank_folder, rank.rank));
  }
  return set;
}

}  // namespace moxie
