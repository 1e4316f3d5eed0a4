// SPDX-License-Identifier: Apache-2.0
// Reads the small CSV tables of tests/golden: a header line, then rows of plain cells without
// quoting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace moxie::test {

class Csv {
 public:
  // Throws std::runtime_error if the file can not be read or a row is not as wide as the header: a
  // test must not pass on a table that is not there.
  explicit Csv(const std::string& path) : path_(path) {
    std::ifstream file(path);
    std::string line;
    if (!std::getline(file, line)) throw std::runtime_error("can not read " + path);
    header_ = split(line, ',');
    while (std::getline(file, line)) {
      rows_.push_back(split(line, ','));
      if (rows_.back().size() != header_.size()) {
        throw std::runtime_error(path + ": row of another width than the header: " + line);
      }
    }
    if (rows_.empty()) throw std::runtime_error(path + " has no rows");
  }

  std::size_t rows() const { return rows_.size(); }

  const std::string& text(std::size_t row, const std::string& column) const {
    for (std::size_t i = 0; i < header_.size(); ++i) {
      if (header_[i] == column) return rows_.at(row)[i];
    }
    throw std::runtime_error(path_ + " has no column " + column);
  }

  // Decimal, or hexadecimal with a leading 0x.
  std::uint64_t number(std::size_t row, const std::string& column) const {
    return to_number(text(row, column));
  }

  double real(std::size_t row, const std::string& column) const {
    return std::stod(text(row, column));
  }

  // A cell that holds numbers separated by spaces.
  std::vector<std::uint64_t> numbers(std::size_t row, const std::string& column) const {
    std::vector<std::uint64_t> values;
    for (const std::string& part : split(text(row, column), ' ')) values.push_back(to_number(part));
    return values;
  }

 private:
  static std::vector<std::string> split(const std::string& line, char separator) {
    std::vector<std::string> cells;
    std::string cell;
    std::istringstream stream(line);
    while (std::getline(stream, cell, separator)) {
      if (!cell.empty() && cell.back() == '\r') cell.pop_back();
      cells.push_back(cell);
    }
    if (!line.empty() && line.back() == separator) cells.emplace_back();
    return cells;
  }

  static std::uint64_t to_number(const std::string& cell) {
    const bool is_hex = cell.rfind("0x", 0) == 0;
    std::size_t used = 0;
    const std::uint64_t value = std::stoull(cell, &used, is_hex ? 16 : 10);
    if (used != cell.size()) throw std::runtime_error("not a number: " + cell);
    return value;
  }

  std::string path_;
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

// A table of tests/golden.
inline Csv golden(const std::string& name) {
  return Csv(std::string(MOXIE_GOLDEN_DIR) + "/" + name);
}

}  // namespace moxie::test
