// SPDX-License-Identifier: Apache-2.0
// Kinds of options that verbs share, with the words of their refusals.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace moxie::cli {

// An option whose value is one of the names of an enumeration.
template <class Enum, class Variable>
void add_choice(CLI::App* verb, const std::string& flag, Variable& variable,
                const std::vector<Enum>& values, const std::string& description) {
  std::string names;
  for (const Enum value : values) names += (names.empty() ? "" : "|") + std::string(name_of(value));
  const auto choose = [&variable, values, names, flag](const std::string& word) {
    for (const Enum value : values) {
      if (name_of(value) == word) {
        variable = value;
        return;
      }
    }
    throw CLI::ValidationError(flag, "\"" + word + "\" is none of " + names);
  };
  verb->add_option_function<std::string>(flag, choose, names + ": " + description)
      ->type_name("NAME");
}

// A whole number in decimal digits: no sign, and neither 0x10 nor 010 means sixteen or eight.
template <class Number>
Number read_count(const std::string& flag, const std::string& text, Number least = 0) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least) {
    throw CLI::ValidationError(flag, "\"" + text + "\" is no whole number from " +
                                         std::to_string(least) + " to " +
                                         std::to_string(std::numeric_limits<Number>::max()));
  }
  return value;
}

template <class Number, class Variable>
void add_count(CLI::App* verb, const std::string& flag, Variable& variable,
               const std::string& description, Number least = 0) {
  const auto read = [&variable, flag, least](const std::string& text) {
    variable = read_count<Number>(flag, text, least);
  };
  verb->add_option_function<std::string>(flag, read, description)->type_name("N");
}

// A decimal number.
template <class Variable>
void add_number(CLI::App* verb, const std::string& flag, Variable& variable,
                const std::string& description) {
  const auto read = [&variable, flag](const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
      throw CLI::ValidationError(flag, "\"" + text + "\" is no number");
    variable = value;
  };
  verb->add_option_function<std::string>(flag, read, description)->type_name("X");
}

}  // namespace moxie::cli
