// SPDX-License-Identifier: Apache-2.0
// The smallest user of the library: every way to get at moxie builds and runs this file.
#include <cstdio>
#include <exception>
#include <string>

#include "moxie/moxie.hpp"

int main() {
  const std::string name(moxie::name_of(moxie::BlockFormat::mxfp4));
  try {
    moxie::open_checkpoint("absent");
  } catch (const moxie::Error& error) {  // an exception type crosses the library's border
    std::printf("%s: %s\n", name.c_str(), error.what());
    return name == "mxfp4" ? 0 : 1;
  } catch (const std::exception&) {
    return 1;
  }
  return 1;
}
