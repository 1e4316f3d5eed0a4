// SPDX-License-Identifier: Apache-2.0
// What files.json states, held against what lies beside it.
#include "verify/file_check.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "base/hash.hpp"
#include "base/mapped_file.hpp"
#include "pack/packed_names.hpp"

namespace moxie {

namespace fs = std::filesystem;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::vector<Finding> check_names(const PackedRank& rank) {
  std::vector<Finding> findings;
  const auto report = [&](const std::string& name, std::string message) {
    findings.push_back({.code = "MOXIE-V004",
                        .message = std::move(message),
                        .where = {.file = (rank.folder / name).string(), .rank = rank.rank}});
  };
  for (const std::string& name : names_in(rank.folder)) {
    if (name != kFilesFile && !rank.files.contains(name)) report(name, "file is not in files.json");
  }
  for (const auto& [name, record] : rank.files) {
    if (!layer_of_file(name) && name != kTopFile)
      report(name, "files.json names a file that is no layer's");
  }
  return findings;
}

namespace {

// Of a file of any size: its pages are given back piece by piece.
std::string checksum_of(const MappedFile& file) {
  constexpr std::size_t kPieceBytes = std::size_t{16} << 20;
  StreamHash hash;
  for (std::size_t at = 0; at < file.bytes().size(); at += kPieceBytes) {
    hash.update(file.bytes().subspan(at, std::min(kPieceBytes, file.bytes().size() - at)));
    file.release();
  }
  return hash.hex();
}

}  // namespace

std::optional<Finding> check_file(const PackedRank& rank, const std::string& name,
                                  const PackedFileRecord& record) {
  const fs::path path = rank.folder / name;
  if (!fs::is_regular_file(path)) return std::nullopt;
  const MappedFile file(path);
  const std::string checksum = checksum_of(file);
  if (file.bytes().size() == record.bytes && checksum == record.checksum) return std::nullopt;
  return Finding{.code = "MOXIE-V001",
                 .message = "file does not match its checksum",
                 .where = {.file = path.string(), .rank = rank.rank},
                 .expected = std::to_string(record.bytes) + " bytes, xxh3_128 " + record.checksum,
                 .got = std::to_string(file.bytes().size()) + " bytes, xxh3_128 " + checksum};
}

}  // namespace moxie
