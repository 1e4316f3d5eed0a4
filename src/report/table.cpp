// SPDX-License-Identifier: Apache-2.0
// Tables: column widths in characters, numbers to the right.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "moxie/report.hpp"

namespace moxie {

namespace {

// Characters of UTF-8 text: all bytes but continuation bytes.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// "12", "-3.5", "13,369,344", "4.2 %", "13.4 MB": digits with separators, then at most one unit.
bool is_number(std::string_view cell) {
  if (!cell.empty() && (cell.front() == '-' || cell.front() == '+')) cell.remove_prefix(1);
  if (cell.empty() || !is_digit(cell.front())) return false;
  const auto rest = cell.find_first_not_of("0123456789.,");
  if (rest == std::string_view::npos) return true;
  std::string_view unit = cell.substr(rest);
  if (unit.front() == ' ') unit.remove_prefix(1);
  return std::ranges::none_of(unit, [](char c) { return is_digit(c) || c == ' ' || c == '.'; });
}

// A cell without a value says nothing about its column.
bool is_blank(std::string_view cell) { return cell.empty() || cell == "-"; }

struct Column {
  std::size_t width = 0;
  bool to_the_right = false;
};

std::vector<Column> columns_of(const std::vector<std::string>& head,
                               const std::vector<std::vector<std::string>>& rows) {
  std::vector<Column> columns(head.size());
  for (std::size_t i = 0; i < head.size(); ++i) {
    bool any_number = false;
    bool any_text = false;
    columns[i].width = width_of(head[i]);
    for (const auto& row : rows) {
      columns[i].width = std::max(columns[i].width, width_of(row[i]));
      if (is_blank(row[i])) continue;
      (is_number(row[i]) ? any_number : any_text) = true;
    }
    columns[i].to_the_right = any_number && !any_text;
  }
  return columns;
}

std::string text_line(const std::vector<std::string>& cells, const std::vector<Column>& columns) {
  std::string line;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += "  ";
    const std::string blanks(columns[i].width - width_of(cells[i]), ' ');
    line += columns[i].to_the_right ? blanks + cells[i] : cells[i] + blanks;
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::string markdown_line(const std::vector<std::string>& cells) {
  std::string line = "|";
  for (const std::string& cell : cells) {
    line += ' ';
    for (const char c : cell) {
      if (c == '|') line += '\\';
      line += c == '\n' ? ' ' : c;
    }
    line += " |";
  }
  return line + "\n";
}

}  // namespace

Table::Table(std::vector<std::string> head) : head_(std::move(head)) {}

void Table::add_row(std::vector<std::string> cells) {
  MOXIE_CHECK(cells.size() == head_.size(), "a row has one cell per column");
  rows_.push_back(std::move(cells));
}

std::string Table::to_text() const {
  const std::vector<Column> columns = columns_of(head_, rows_);
  std::vector<std::string> rule;
  rule.reserve(columns.size());
  for (const Column& column : columns) rule.emplace_back(column.width, '-');
  std::string text = text_line(head_, columns) + text_line(rule, columns);
  for (const auto& row : rows_) text += text_line(row, columns);
  return text;
}

std::string Table::to_markdown() const {
  const std::vector<Column> columns = columns_of(head_, rows_);
  std::string text = markdown_line(head_) + "|";
  for (const Column& column : columns) text += column.to_the_right ? "---:|" : "---|";
  text += "\n";
  for (const auto& row : rows_) text += markdown_line(row);
  return text;
}

}  // namespace moxie
