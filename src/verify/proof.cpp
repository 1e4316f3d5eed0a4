// SPDX-License-Identifier: Apache-2.0
// {plan_hash, ranks, files: {"rank-000/model-00000.safetensors": {bytes, xxh3_128}, "config.json":
// {…}}}.
#include "verify/proof.hpp"

#include <string>
#include <system_error>
#include <utility>

#include "base/hash.hpp"
#include "base/mapped_file.hpp"
#include "base/staged_file.hpp"
#include "moxie/json.hpp"
#include "pack/packed_names.hpp"

namespace moxie {

void write_proof(const PackedSet& set) {
  Json ranks = Json::array();
  Json files = Json::object();
  for (const PackedRank& rank : set.ranks) {
    ranks.push_back(rank.rank);
    for (const auto& [name, record] : rank.files) {
      files.set(rank_folder_name(rank.rank) + "/" + name,
                Json::object().set("bytes", record.bytes).set("xxh3_128", record.checksum));
    }
  }
  for (const std::string_view name : kConfigFiles) {
    const std::filesystem::path config = set.folder / name;
    if (!std::filesystem::is_regular_file(config)) continue;
    const std::string text = read_text_file(config);
    files.set(name, Json::object().set("bytes", text.size()).set("xxh3_128", hash_hex(text)));
  }
  Json proof;
  proof.set("plan_hash", set.plan_hash)
      .set("ranks", std::move(ranks))
      .set("files", std::move(files));
  write_text_file(set.folder / kProofFile, proof.dump() + "\n");
}

void remove_proof(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (is_packed_set(folder)) std::filesystem::remove(folder / kProofFile, ignored);
}

}  // namespace moxie
