// SPDX-License-Identifier: Apache-2.0
// Opens folders and files: parses index and shard headers in parallel, then joins them into one
// tensor directory. A .gguf is one file with its own config.
#include "moxie/checkpoint.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "base/errors.hpp"
#include "base/mapped_file.hpp"
#include "base/parallel.hpp"
#include "checkpoint/config_file.hpp"
#include "checkpoint/gguf_header.hpp"
#include "checkpoint/name_table.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "checkpoint/shard_index.hpp"

namespace moxie {

namespace fs = std::filesystem;

struct Checkpoint::State {
  fs::path path;
  std::vector<CheckpointFile> files;
  std::vector<MappedFile> maps;  // beside `files`
  std::vector<TensorInfo> tensors;
  NameTable by_name;                                    // over `tensors`
  std::unordered_map<std::string, std::string> absent;  // tensor -> shard that is not on disk
  Json config;
  Json quant_config;
  fs::path config_path;  // empty when there is no such file
  fs::path quant_config_path;
  std::vector<Finding> findings;

  [[nodiscard]] std::string_view name_at(std::uint32_t position) const {
    return tensors[position].name;
  }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const {
    const auto position = by_name.find(name, [this](std::uint32_t i) { return name_at(i); });
    return position ? &tensors[*position] : nullptr;
  }
};

namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";

// One file's mapping and header, or what reading it threw.
struct ReadFile {
  MappedFile map;
  SafetensorsHeader header;
  std::exception_ptr failure;
};

ReadFile read_file(const fs::path& path) {
  ReadFile file;
  try {
    file.map = MappedFile(path);
    file.header = read_safetensors_header(file.map.bytes(), path.string());
  } catch (...) {
    file.failure = std::current_exception();
  }
  return file;
}

[[noreturn]] void refuse(Finding finding) { throw Error(ErrorCode::input, std::move(finding)); }

void warn(Checkpoint::State& state, Severity severity, std::string code, std::string message,
          std::string file, std::string tensor = {}) {
  state.findings.push_back({.code = std::move(code),
                            .severity = severity,
                            .message = std::move(message),
                            .where = {.file = std::move(file), .tensor = std::move(tensor)}});
}

std::vector<std::string> names_with(std::string_view extension, const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    std::string name = entry.path().filename().string();
    std::error_code error;
    if (entry.path().extension() != extension || name.starts_with('.') || entry.is_directory(error))
      continue;
    names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

// Moves the files' tensors into the directory. A name in two files is refused: which one is meant
// is unknown.
void join_files(Checkpoint::State& state, const std::vector<fs::path>& paths,
                std::vector<ReadFile> read) {
  std::size_t count = 0;
  for (const ReadFile& file : read) {
    if (file.failure) std::rethrow_exception(file.failure);
    count += file.header.tensors.size();
  }
  state.tensors.reserve(count);
  state.by_name.reserve(count);
  for (std::size_t i = 0; i < read.size(); ++i) {
    state.files.push_back({paths[i], read[i].map.bytes().size(), read[i].header.header_bytes});
    state.maps.push_back(std::move(read[i].map));
    for (TensorInfo& tensor : read[i].header.tensors) {
      tensor.file = static_cast<std::uint32_t>(i);
      const auto position = static_cast<std::uint32_t>(state.tensors.size());
      const auto other = state.by_name.add(tensor.name, position,
                                           [&](std::uint32_t k) { return state.name_at(k); });
      if (other) {
        refuse({.code = "MOXIE-C013",
                .message = "tensor is in two files: " + paths[state.tensors[*other].file].string() +
                           " and " + paths[i].string(),
                .where = {.tensor = tensor.name},
                .hint = "remove the file that does not belong to the checkpoint"});
      }
      state.tensors.push_back(std::move(tensor));
    }
  }
}

// Holds the index against the headers: every mapped tensor must be where the index says, unless its
// shard is absent.
void check_index(Checkpoint::State& state, const ShardIndex& index,
                 const std::vector<bool>& present, const fs::path& folder,
                 const std::vector<std::uint32_t>& file_of_shard) {
  std::vector<std::uint64_t> waiting(index.shards.size(),
                                     0);  // tensors that an absent shard should hold
  std::uint64_t found = 0;
  for (const ShardIndex::Entry& entry : index.weight_map) {
    if (!present[entry.shard]) {
      if (const TensorInfo* tensor = state.find(entry.tensor)) {
        refuse({.code = "MOXIE-C011",
                .message = "the index places the tensor in " + index.shards[entry.shard] +
                           ", which is not on disk, but another shard holds it",
                .where = {.file = state.files[tensor->file].path.string(), .tensor = tensor->name},
                .hint = "the index and the shards are of different versions; download both again"});
      }
      ++waiting[entry.shard];
      state.absent.emplace(entry.tensor, index.shards[entry.shard]);
      continue;
    }
    const TensorInfo* tensor = state.find(entry.tensor);
    if (tensor == nullptr || tensor->file != file_of_shard[entry.shard]) {
      refuse(
          {.code = "MOXIE-C011",
           .message = "the index names a tensor that its shard does not hold",
           .where = {.file = (folder / index.shards[entry.shard]).string(), .tensor = entry.tensor},
           .hint = "the index and the shards are of different versions; download both again"});
    }
    ++found;
  }
  for (std::size_t shard = 0; shard < waiting.size(); ++shard) {
    if (!present[shard]) {
      warn(state, Severity::warning, "MOXIE-C010",
           "shard is not on disk; " + std::to_string(waiting[shard]) + " tensors depend on it",
           (folder / index.shards[shard]).string());
    }
  }
  if (found < state.tensors.size()) {
    std::unordered_map<std::string_view, bool> mapped;
    for (const ShardIndex::Entry& entry : index.weight_map) mapped.emplace(entry.tensor, true);
    const auto first = std::ranges::find_if(
        state.tensors, [&](const auto& t) { return !mapped.contains(t.name); });
    warn(state, Severity::warning, "MOXIE-C012",
         std::to_string(state.tensors.size() - found) +
             " tensors are in a shard but not in the index; the first is named",
         state.files[first->file].path.string(), first->name);
  }
  std::uint64_t total = 0;
  for (const TensorInfo& tensor : state.tensors) total += tensor.bytes;
  if (index.total_size && state.absent.empty() && *index.total_size != total) {
    warn(state, Severity::warning, "MOXIE-C015",
         "the index states total_size " + std::to_string(*index.total_size) + ", the shards hold " +
             std::to_string(total) + " bytes; the headers are believed",
         (folder / kIndexName).string());
  }
}

void open_with_index(Checkpoint::State& state, const fs::path& folder,
                     const std::vector<std::string>& names) {
  // Files named like shards are read beside the index instead of after it; a failure counts only if
  // the index names one.
  std::vector<std::string> likely;
  std::ranges::copy_if(names, std::back_inserter(likely),
                       [](const auto& n) { return n.find("-of-") != n.npos; });
  std::unordered_map<std::string, ReadFile> read;
  for (const std::string& name : likely) read.emplace(name, ReadFile{});
  ShardIndex index;
  parallel_for(likely.size() + 1, [&](std::uint64_t i) {
    if (i == 0) {
      const MappedFile file(folder / kIndexName);
      const auto bytes = file.bytes();
      index = read_shard_index({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                               (folder / kIndexName).string());
    } else {
      read.at(likely[i - 1]) = read_file(folder / likely[i - 1]);
    }
  });
  std::vector<bool> present(index.shards.size(), false);
  std::vector<std::uint32_t> file_of_shard(index.shards.size(), 0);
  std::vector<std::pair<std::string, std::size_t>> order;  // shards on disk, by name
  for (std::size_t shard = 0; shard < index.shards.size(); ++shard) {
    std::error_code error;  // a name that can not exist and a link to nothing are absent too
    present[shard] = fs::is_regular_file(folder / index.shards[shard], error);
    if (present[shard]) order.emplace_back(index.shards[shard], shard);
  }
  std::ranges::sort(order);
  std::vector<fs::path> paths;
  std::vector<ReadFile> files;
  for (const auto& [name, shard] : order) {
    file_of_shard[shard] = static_cast<std::uint32_t>(paths.size());
    paths.push_back(folder / name);
    const auto ready = read.find(name);
    files.push_back(ready != read.end() ? std::move(ready->second) : read_file(folder / name));
  }
  join_files(state, paths, std::move(files));
  check_index(state, index, present, folder, file_of_shard);
  for (const std::string& name : names) {
    if (std::ranges::find(index.shards, name) == index.shards.end()) {
      warn(state, Severity::note, "MOXIE-C014", "file is not named by the index and is not read",
           (folder / name).string());
    }
  }
}

void open_files(Checkpoint::State& state, const std::vector<fs::path>& paths) {
  std::vector<ReadFile> read(paths.size());
  parallel_for(paths.size(), [&](std::uint64_t i) { read[i] = read_file(paths[i]); });
  join_files(state, paths, std::move(read));
}

// The metadata is the config.
void open_gguf(Checkpoint::State& state, const fs::path& path) {
  std::vector<ReadFile> read(1);
  read[0].map = MappedFile(path);
  GgufHeader header = read_gguf_header(read[0].map.bytes(), path.string());
  read[0].header = {.header_bytes = header.header_bytes, .tensors = std::move(header.tensors)};
  join_files(state, {path}, std::move(read));
  state.config = std::move(header.metadata);
}

// A folder without config and safetensors may hold one .gguf.
void open_only_gguf(Checkpoint::State& state, const fs::path& folder) {
  const std::vector<std::string> names = names_with(".gguf", folder);
  if (names.size() == 1) return open_gguf(state, folder / names.front());
  if (names.empty()) {
    refuse({.code = "MOXIE-C001",
            .message = "folder holds neither config.json nor a .safetensors or .gguf file",
            .where = {.file = folder.string()}});
  }
  refuse({.code = "MOXIE-C001",
          .message = "folder holds several .gguf files",
          .where = {.file = folder.string()},
          .expected = "one",
          .got = names[0] + ", " + names[1] + (names.size() > 2 ? ", …" : ""),
          .hint = "name the file"});
}

// Reads the config and its sidecar where they exist.
void read_configs(Checkpoint::State& state, const fs::path& config, const fs::path& quant_config) {
  state.config = read_config_file(config);
  state.quant_config = read_config_file(quant_config);
  if (!state.config.is_null()) state.config_path = config;
  if (!state.quant_config.is_null()) state.quant_config_path = quant_config;
}

void open_folder(Checkpoint::State& state, const fs::path& folder) {
  read_configs(state, folder / "config.json", folder / "hf_quant_config.json");
  const std::vector<std::string> names = names_with(".safetensors", folder);
  if (fs::exists(folder / kIndexName)) return open_with_index(state, folder, names);
  std::vector<fs::path> paths;
  paths.reserve(names.size());
  for (const std::string& name : names) paths.push_back(folder / name);
  if (paths.empty() && state.config.is_null()) return open_only_gguf(state, folder);
  open_files(state, paths);
}

// "DIR/NAME.json" -> "DIR/NAME.hf_quant_config.json"; "DIR/config.json" also
// "DIR/hf_quant_config.json".
fs::path sidecar_of(const fs::path& config) {
  const fs::path named = config.parent_path() / (config.stem().string() + ".hf_quant_config.json");
  const bool plain = config.filename() == "config.json" && !fs::exists(named);
  return plain ? config.parent_path() / "hf_quant_config.json" : named;
}

void open_path(Checkpoint::State& state, const fs::path& path) {
  if (fs::is_directory(path)) return open_folder(state, path);
  if (!fs::exists(path)) {
    refuse({.code = "MOXIE-C001",
            .message = "no such file or folder",
            .where = {.file = path.string()}});
  }
  if (path.extension() == ".json") {
    read_configs(state, path, sidecar_of(path));
  } else if (path.extension() == ".safetensors") {
    read_configs(state, path.parent_path() / "config.json",
                 path.parent_path() / "hf_quant_config.json");
    open_files(state, {path});
  } else if (path.extension() == ".gguf") {
    open_gguf(state, path);
  } else {
    refuse(
        {.code = "MOXIE-C001",
         .message = "not a checkpoint",
         .where = {.file = path.string()},
         .expected = "a folder with config.json, a .json config, a .safetensors or a .gguf file"});
  }
}

}  // namespace

Checkpoint::Checkpoint(std::shared_ptr<const State> state) : state_(std::move(state)) {}

const fs::path& Checkpoint::path() const { return state_->path; }
std::span<const CheckpointFile> Checkpoint::files() const { return state_->files; }
std::span<const TensorInfo> Checkpoint::tensors() const { return state_->tensors; }
const Json& Checkpoint::config() const { return state_->config; }
const Json& Checkpoint::quant_config() const { return state_->quant_config; }
const fs::path& Checkpoint::config_path() const { return state_->config_path; }
const fs::path& Checkpoint::quant_config_path() const { return state_->quant_config_path; }
std::span<const Finding> Checkpoint::findings() const { return state_->findings; }

const TensorInfo* Checkpoint::find(std::string_view name) const { return state_->find(name); }

std::string_view Checkpoint::absent_shard_of(std::string_view name) const {
  if (state_->absent.empty()) return {};
  const auto place = state_->absent.find(std::string(name));
  return place == state_->absent.end() ? std::string_view{} : place->second;
}

std::span<const std::byte> Checkpoint::bytes(const TensorInfo& tensor) const {
  return state_->maps[tensor.file].bytes().subspan(tensor.offset, tensor.bytes);
}

void Checkpoint::release(std::uint32_t file) const { state_->maps[file].release(); }

void Checkpoint::read_ahead(std::uint32_t file, std::uint64_t offset, std::uint64_t bytes) const {
  state_->maps[file].read_ahead(offset, bytes);
}

void Checkpoint::read(std::uint32_t file, std::uint64_t offset, std::span<std::byte> to) const {
  const CheckpointFile& read = state_->files[file];
  const std::uint64_t due = offset < read.bytes ? std::min(to.size(), read.bytes - offset) : 0;
  const std::uint64_t got = state_->maps[file].read(offset, to);
  if (got >= due) return;
  throw Error(ErrorCode::environment, {.code = "MOXIE-E001",
                                       .message = "read failed: the file has become shorter",
                                       .where = {.file = read.path.string()},
                                       .expected = std::to_string(read.bytes) + " bytes",
                                       .got = std::to_string(offset + got)});
}

Checkpoint open_checkpoint(const fs::path& path) {
  auto state = std::make_shared<Checkpoint::State>();
  state->path = path;
  try {
    open_path(*state, path);
  } catch (const fs::filesystem_error& error) {
    raise_system("open", error.path1().empty() ? path : error.path1(), error.code().value());
  }
  return Checkpoint(std::move(state));
}

}  // namespace moxie
